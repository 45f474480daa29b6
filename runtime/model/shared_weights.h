#ifndef RUNTIME_MODEL_SHARED_WEIGHTS_H_
#define RUNTIME_MODEL_SHARED_WEIGHTS_H_

#include <memory>
#include <string>

#include "runtime/model/file.h"

namespace tvm_interop {

// Returns the weights of an artifact as memory: `nbytes` bytes of `source` from `offset` on, whose
// SHA-256 is `sha256`.
//
// Artifacts of this process with the same weights share one block of memory. An example is a model
// that was compiled for several sizes one by one. Kernel libraries then pack each weight once for
// all these artifacts, because they recognise a packed weight by the address of the weight. A block
// is freed with the last artifact that holds it. Any thread may call this.
std::shared_ptr<const Memory> SharedWeights(const Source& source, uint64_t offset, size_t nbytes,
                                            const std::string& sha256);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_SHARED_WEIGHTS_H_

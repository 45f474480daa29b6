#ifndef RUNTIME_CPU_ONEDNN_POOLING_H_
#define RUNTIME_CPU_ONEDNN_POOLING_H_

#include <string>

#include "runtime/core/owned.h"
#include "runtime/core/window.h"
#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/descs.h"

namespace tvm_interop {
namespace onednn {

// Describes a pooling primitive. `from` and `to` are the shapes N,C,H,W of the source and the
// result, and `source` and `result` describe how they lie in memory.
Owned<PrimitiveDesc> PoolDesc(const Api& api, Engine engine, const Window& window, int algorithm,
                              const Owned<Attributes>& attributes, const Owned<MemoryDesc>& source,
                              const Shape& from, const Owned<MemoryDesc>& result, const Shape& to);

// Returns oneDNN's algorithm for average pooling.
inline int MeanOf(bool counts_padding) {
  return counts_padding ? kPoolingAverageWithPadding : kPoolingAverageWithoutPadding;
}

// Returns why oneDNN cannot compute an average pooling whose means include the padding, or an empty
// string if it can. `from` and `to` are the shapes N,C,H,W of the source and the result. If the
// output's size is rounded up, oneDNN would also include the elements beyond the edge of the
// padding.
std::string WhyNotMean(const Window& window, const Shape& from, const Shape& to);

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_POOLING_H_

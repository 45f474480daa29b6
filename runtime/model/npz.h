#ifndef RUNTIME_MODEL_NPZ_H_
#define RUNTIME_MODEL_NPZ_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/model/file.h"
#include "runtime/model/plan.h"

namespace tvm_interop {

// Reads weights from the bytes of `weights.npz`, which artifacts of version 1 have in place of
// `weights.bin`. It is a zip file without compression, whose member `7.npy` is the weight of
// value 7.
//
// Returns memory that holds all weights, and writes where each begins into `offsets`. `wanted` has
// the values whose data is read. Throws ArtifactError if a weight is missing, has another shape or
// type, or cannot be read.
std::shared_ptr<const Memory> ReadNpz(const std::string& data,
                                      const std::map<int64_t, PlannedValue>& wanted,
                                      std::map<int64_t, int64_t>* offsets);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_NPZ_H_

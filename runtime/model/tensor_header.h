#ifndef RUNTIME_MODEL_TENSOR_HEADER_H_
#define RUNTIME_MODEL_TENSOR_HEADER_H_

#include <cstdint>
#include <vector>

#include "runtime/model/plan.h"
#include "runtime/model/tvm_kernels.h"

namespace tvm_interop {

// The kinds of devices, as DLPack numbers them.
enum DeviceKind : int32_t { kCpuDevice = 1, kCudaDevice = 2 };

// Describes a tensor to TVM's kernels, without its address. `dims` becomes the tensor's shape in
// memory and then its strides. The header points to `dims`, so `dims` must live as long as the
// header and not change.
TensorHeader HeaderOf(const PlannedValue& value, DeviceKind kind, int device,
                      std::vector<int64_t>* dims);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_TENSOR_HEADER_H_

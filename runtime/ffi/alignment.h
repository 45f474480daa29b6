#ifndef RUNTIME_FFI_ALIGNMENT_H_
#define RUNTIME_FFI_ALIGNMENT_H_

#include <cstddef>

namespace tvm_interop {

// The alignment of the address of a tensor in main memory, in bytes; see `runtime/model/plan.h`.
inline constexpr size_t kTensorAlignment = 64;

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_ALIGNMENT_H_

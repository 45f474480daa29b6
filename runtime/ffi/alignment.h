#ifndef RUNTIME_FFI_ALIGNMENT_H_
#define RUNTIME_FFI_ALIGNMENT_H_

#include <cstddef>

namespace tvm_interop {

// The alignment of a tensor's address in main memory, in bytes. TVM's code generator requires it.
inline constexpr size_t kTensorAlignment = 64;

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_ALIGNMENT_H_

#ifndef RUNTIME_FFI_ALIGNMENT_H_
#define RUNTIME_FFI_ALIGNMENT_H_

#include <cstddef>

namespace tvm_interop {

// Of a tensor's address in main memory, in bytes: what TVM's code generator asks for.
inline constexpr size_t kTensorAlignment = 64;

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_ALIGNMENT_H_

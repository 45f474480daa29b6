#ifndef RUNTIME_FFI_GUARDED_CUDA_H_
#define RUNTIME_FFI_GUARDED_CUDA_H_

#include <tvm/ffi/error.h>

#include "runtime/cuda/api.h"
#include "runtime/ffi/guarded.h"

namespace tvm_interop {

// Works like `Guarded`, but turns `cuda::MissingError` and `cuda::LostError` into a `DeviceError`.
template <typename Body>
auto GuardedCuda(Body&& body) -> decltype(body()) {
  return Guarded([&]() -> decltype(body()) {
    try {
      return body();
    } catch (const cuda::MissingError& error) {
      TVM_FFI_THROW(DeviceError) << error.what();
    } catch (const cuda::LostError& error) {
      TVM_FFI_THROW(DeviceError) << error.what();
    }
    TVM_FFI_UNREACHABLE();
  });
}

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_GUARDED_CUDA_H_

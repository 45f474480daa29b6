#ifndef RUNTIME_FFI_GUARDED_H_
#define RUNTIME_FFI_GUARDED_H_

#include <tvm/ffi/error.h>

#include <exception>

namespace tvm_interop {

// Runs `body` for the bindings. An exception from the C++ core becomes an `ExecutionError`, which
// Python knows by name.
template <typename Body>
auto Guarded(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const tvm::ffi::Error&) {
    throw;
  } catch (const std::exception& error) {
    TVM_FFI_THROW(ExecutionError) << error.what();
  }
  TVM_FFI_UNREACHABLE();
}

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_GUARDED_H_

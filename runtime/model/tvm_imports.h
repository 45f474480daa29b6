#ifndef RUNTIME_MODEL_TVM_IMPORTS_H_
#define RUNTIME_MODEL_TVM_IMPORTS_H_

#include <string>

namespace tvm_interop {

// The function of tvm-ffi with which a kernel reports an error.
constexpr const char* kRaiseImport = "TVMFFIErrorSetRaisedFromCStrParts";

// Whether kernels may import the function or variable `name`. Allowed are `kRaiseImport`, functions
// of the C library, of its mathematics library and of the compiler's own library, and weak names
// that a compiler puts into every library. These include all imports that were seen in the kernels
// of networks, of ONNX's node tests and of random graphs (`tests/kernel_imports.py`).
bool IsKnownImport(const std::string& name);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_TVM_IMPORTS_H_

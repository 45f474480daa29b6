#ifndef RUNTIME_CPU_ONEDNN_LIBRARY_H_
#define RUNTIME_CPU_ONEDNN_LIBRARY_H_

#include <memory>
#include <string>

#include "runtime/cpu/kernel_library.h"

namespace tvm_interop {

// Loads the kernels of oneDNN 3.x from the shared library at `path`. Throws std::runtime_error with
// the reason if the library cannot be used.
std::unique_ptr<KernelLibrary> LoadOneDnn(const std::string& path);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_LIBRARY_H_

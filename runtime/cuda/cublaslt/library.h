#ifndef RUNTIME_CUDA_CUBLASLT_LIBRARY_H_
#define RUNTIME_CUDA_CUBLASLT_LIBRARY_H_

#include <memory>
#include <string>

#include "runtime/cuda/kernel_library.h"

namespace tvm_interop {

// Loads cuBLASLt 13 from the shared library at `path`. cuBLASLt provides matrix products that can
// add a bias and a tensor and apply ReLU. Throws std::runtime_error with the reason if the library
// cannot be used.
std::unique_ptr<CudaKernelLibrary> LoadCublasLt(const std::string& path);

// Returns why cuBLASLt cannot compute `op`, or an empty string if it can. `WhyUnsupportedOnCuda`
// calls this function after it has made the checks that all libraries share.
std::string WhyNotForCublasLt(const OpDescription& op);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_CUBLASLT_LIBRARY_H_

#ifndef RUNTIME_CUDA_CUBLASLT_LIBRARY_H_
#define RUNTIME_CUDA_CUBLASLT_LIBRARY_H_

#include <memory>
#include <string>

#include "runtime/cuda/kernel_library.h"

namespace tvm_interop {

// Matrix products of cuBLASLt 13, with bias, sum and ReLU, from the shared library at `path`.
// Throws std::runtime_error that says why where it cannot be used.
std::unique_ptr<CudaKernelLibrary> LoadCublasLt(const std::string& path);

// As `WhyUnsupportedOnCuda`, for an operator that is well formed and has nothing no library takes.
std::string WhyNotForCublasLt(const OpDescription& op);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_CUBLASLT_LIBRARY_H_

#ifndef RUNTIME_CUDA_KERNEL_LIBRARY_H_
#define RUNTIME_CUDA_KERNEL_LIBRARY_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/cuda/executor.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

class CudaLibraryKernel : public CudaKernel {
 public:
  // What the library chose to run, for people.
  virtual std::string implementation() const = 0;
};

// A library of kernels for GPUs. What they need beside their arguments belongs to the stream they
// are launched on (see `CudaStreamResources`), so that one kernel can run on any.
class CudaKernelLibrary {
 public:
  virtual ~CudaKernelLibrary() = default;
  virtual std::string version() const = 0;
  // A kernel for the GPU of `stream`, of arguments at these addresses, the output last.
  //
  // The first time for such an operator on such a GPU, the library's algorithms run against each
  // other on `stream`, which writes the output, and the fastest is kept; ties go to the one the
  // library names first. The choice holds as long as the process: schedules of one model run the
  // same algorithms, each of which always gives the same bits.
  //
  // Throws std::runtime_error where `op` is not supported.
  virtual std::unique_ptr<CudaLibraryKernel> Prepare(const OpDescription& op,
                                                     const CudaStream& stream,
                                                     const std::vector<void*>& args) = 0;
};

// Why library `name` cannot compute this; empty where it can. Needs neither the library nor a GPU:
// models are compiled where there is none. Throws std::runtime_error for a name there is not.
std::string WhyUnsupportedOnCuda(const std::string& name, const OpDescription& op);

// The library `name` from the file at `path`, loaded once in a process, for good. Throws
// std::runtime_error that says why where it cannot be used.
CudaKernelLibrary& LoadCudaKernelLibrary(const std::string& name, const std::string& path);

// A library that was loaded; null where it was not.
CudaKernelLibrary* FindCudaKernelLibrary(const std::string& name);

// For libraries: throws std::runtime_error unless there is an argument for each shape, at an
// address that vector loads can take.
void CheckCudaArguments(const OpDescription& op, const std::vector<void*>& args);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_KERNEL_LIBRARY_H_

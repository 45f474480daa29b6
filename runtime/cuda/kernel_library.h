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
  // The name of the library's algorithm, for people to read.
  virtual std::string implementation() const = 0;
};

// A library of kernels for GPUs. The workspace and the library handle that a kernel needs belong to
// the stream on which the kernel is launched (see `CudaStreamResources`). So a kernel can run on
// any stream.
class CudaKernelLibrary {
 public:
  virtual ~CudaKernelLibrary() = default;
  virtual std::string version() const = 0;
  // Prepares a kernel for the GPU of `stream`. `args` are the addresses of the arguments, the
  // output last.
  //
  // The first time that an operator is prepared on a kind of GPU, the library's algorithms run
  // against each other on `stream`, and the fastest is kept. These runs write the output. In a tie,
  // the algorithm that the library names first is kept. The choice lasts until the process ends. So
  // all schedules of a model run the same algorithms, and each algorithm always gives the same
  // bits.
  //
  // Throws std::runtime_error if `op` is not supported.
  virtual std::unique_ptr<CudaLibraryKernel> Prepare(const OpDescription& op,
                                                     const CudaStream& stream,
                                                     const std::vector<void*>& args) = 0;
};

// Returns why library `name` cannot compute `op`, or an empty string if it can. This check needs
// neither the library nor a GPU, because models are also compiled on machines without a GPU. Throws
// std::runtime_error if there is no library of this name.
std::string WhyUnsupportedOnCuda(const std::string& name, const OpDescription& op);

// Returns the library `name`, and loads it from the file at `path` the first time. The library is
// never unloaded. Throws std::runtime_error with the reason if the library cannot be used.
CudaKernelLibrary& LoadCudaKernelLibrary(const std::string& name, const std::string& path);

// Returns the library `name`, or null if it has not been loaded.
CudaKernelLibrary* FindCudaKernelLibrary(const std::string& name);

// Checks the arguments for a library's kernel. Throws std::runtime_error unless there is one
// argument for each shape, and each address is aligned for vector loads (16 bytes).
void CheckCudaArguments(const OpDescription& op, const std::vector<void*>& args);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_KERNEL_LIBRARY_H_

#ifndef RUNTIME_CUDA_MODULE_H_
#define RUNTIME_CUDA_MODULE_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/cuda/api.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

// Machine code for GPUs, as nvcc writes it: kernels for one or several kinds of GPU. Any thread may
// use it.
class CudaModule {
 public:
  // `code` has the bytes of a cubin, a fatbin, or the text of PTX.
  explicit CudaModule(std::string code) : code_(std::move(code)) {}
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  // Loads the code on a GPU, unless it is there already. Throws std::runtime_error if the GPU
  // cannot run the code.
  void Load(int device);

  // Puts a kernel on the GPU that `config.stream` belongs to, which is current in this thread.
  // `parameters` has the address of each of the kernel's parameters. Throws std::runtime_error if
  // there is no such kernel, or if CUDA refuses the launch.
  void Launch(int device, const std::string& kernel, const cuda::LaunchConfig& config,
              void** parameters);

 private:
  cuda::Module Loaded(int device);
  cuda::Function Find(int device, const std::string& kernel, unsigned shared_nbytes);

  const std::string code_;
  std::mutex loading_;  // Guards the next two fields.
  std::map<int, cuda::Module> modules_;
  std::map<std::pair<int, std::string>, cuda::Function> functions_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_MODULE_H_

#ifndef RUNTIME_MODEL_GPU_KERNELS_H_
#define RUNTIME_MODEL_GPU_KERNELS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/executor.h"
#include "runtime/cuda/module.h"
#include "runtime/cuda/streams.h"
#include "runtime/model/gpu_code.h"
#include "runtime/model/tvm_kernels.h"

namespace tvm_interop {

// The kernels for GPUs that the host's code of a kernel library launches. TVM's code for the host
// looks for each kernel by its name, and calls it with its parameters and the size of the launch.
class GpuKernels {
 public:
  explicit GpuKernels(std::vector<GpuCode> codes);

  // Loads the machine code on a GPU. Throws std::runtime_error if it does not run there.
  void Load(int device);

  // These functions take the place of the functions of tvm-ffi that the host's code calls. Each
  // returns 0 if it succeeds. If it fails, it calls `RaiseInKernel` and returns another number.
  // `InitOnce` sets `*handle` to the result of `make`, unless it is set already. `Lookup` is given
  // the address of a `GpuKernels`.
  static int InitOnce(void** handle, int (*make)(void** made));
  static int Lookup(void* kernels, const char* name, void** function);
  static int Call(void* function, const KernelValue* args, int32_t num_args, KernelValue* result);

  // Sets the stream on which this thread launches kernels while the object lives.
  class OnStream {
   public:
    explicit OnStream(const CudaStream& stream);
    ~OnStream();
    OnStream(const OnStream&) = delete;
    OnStream& operator=(const OnStream&) = delete;

   private:
    const CudaStream* before_;
  };

 private:
  // The result of `Lookup`: a kernel of `module`. If `module` is null, the result is the function
  // that sets the device.
  struct Function {
    CudaModule* module = nullptr;
    std::string name;
    GpuKernel kernel;
  };

  static void Launch(const Function& function, const KernelValue* args, int32_t num_args);

  std::vector<std::unique_ptr<CudaModule>> modules_;
  std::deque<Function> functions_;  // Compiled code keeps the addresses of its entries.
};

// One call of the host's code, which launches kernels on a GPU.
class TvmGpuKernel : public CudaKernel {
 public:
  // `kernels` stays loaded as long as this object lives, and `args` must live as long.
  TvmGpuKernel(std::shared_ptr<const TvmKernels> kernels, const std::string& name,
               const std::vector<TensorHeader*>& args)
      : call_(std::move(kernels), name, args) {}
  void Launch(const CudaStream& stream) override {
    const GpuKernels::OnStream on(stream);
    call_.Run();
  }

 private:
  TvmKernel call_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_GPU_KERNELS_H_

#ifndef RUNTIME_MODEL_GPU_INSTANCE_H_
#define RUNTIME_MODEL_GPU_INSTANCE_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/executor.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/staging.h"
#include "runtime/cuda/streams.h"
#include "runtime/model/model.h"
#include "runtime/model/runnable.h"

namespace tvm_interop {

// An instance on a GPU. A CUDA graph contains the addresses of tensors on the GPU, so these
// addresses never change. Inputs and outputs are therefore copied from and to the caller's memory.
// Each instance has streams and weights of its own.
class GpuInstance : public Runnable {
 public:
  // Loads the model's code on the GPU, copies the weights, runs each operator once, and makes a
  // CUDA graph. Throws ModelError, with `kUnsupported` if there is no GPU or if the code does not
  // fit it.
  GpuInstance(std::shared_ptr<Model> model, size_t shape);

  void Run(const void* const* inputs, void* const* outputs) override;
  void RunRows(const std::vector<int64_t>& rows, const void* const* inputs,
               void* const* outputs) override;
  std::vector<OpTiming> Profile(const void* const* inputs, void* const* outputs) override;
  void* InputBuffer(size_t index) override { return OwnBuffer(&inputs_[index]); }
  void* OutputBuffer(size_t index) override { return OwnBuffer(&outputs_[index]); }
  const Plan& plan() const override { return plan_; }
  std::string Warning() const override;

 private:
  // An input or output of the model.
  struct Port {
    int64_t value = 0;
    size_t slot = 0;  // its place in `staging_`
    size_t nbytes = 0;
    std::shared_ptr<char> own;
  };

  void Prepare();
  void Allocate();
  void CopyWeights();
  void MakePorts();
  void MakeKernels();
  std::unique_ptr<CudaKernel> MakeLibraryKernel(const PlannedOperator& op);
  void* OwnBuffer(Port* port);
  // Whether the caller's memory for an input or output is on this GPU. Throws ModelError if the
  // memory is on another GPU.
  bool IsOnGpu(const Port& port, const void* given) const;
  void CopyInputs(const void* const* inputs);
  // For each output, whether the caller's memory for it is on this GPU.
  std::vector<bool> OnGpu(void* const* outputs) const;
  void CopyOutputs(void* const* outputs, const std::vector<bool>& on_gpu);

  const std::shared_ptr<Model> model_;
  const size_t shape_;
  const Plan& plan_;
  const int gpu_;
  std::shared_ptr<const TvmKernels> code_;
  std::shared_ptr<CudaStreams> streams_;
  std::unique_ptr<CudaMemory> memory_;  // One block with all tensors.
  std::vector<std::vector<int64_t>> dims_;
  std::vector<TensorHeader> headers_;  // by value; never resized, since kernels point to them
  std::vector<Port> inputs_, outputs_;
  std::unique_ptr<CudaStaging> staging_;
  // Declared last, so that it is destroyed first. So runs end before the members that they use are
  // destroyed.
  std::vector<std::unique_ptr<CudaKernel>> kernels_;
  std::unique_ptr<CudaExecutor> executor_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_GPU_INSTANCE_H_

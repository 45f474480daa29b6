#ifndef RUNTIME_MODEL_TVM_KERNELS_H_
#define RUNTIME_MODEL_TVM_KERNELS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cpu/executor.h"

namespace tvm_interop {

// The layouts in memory that TVM's compiled code expects. They are the layouts of DLPack and of
// tvm-ffi's `c_api.h`. They are declared here, so that this library needs neither header.
struct TensorHeader {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t rank;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct KernelValue {
  int32_t type_index;
  uint32_t padding;
  void* pointer;
};

// Stores the text of an error for the calling thread. A function that compiled code calls must
// store the text before it reports the error.
void RaiseInKernel(const std::string& text) noexcept;

class GpuKernels;

// The compiled kernels of a model: a shared library that is loaded into this process.
//
// The library calls one function of tvm-ffi, which reports an error. This class lets the library
// call another function instead, so that kernels run without tvm-ffi. If tvm-ffi is in the process
// too, it does not see errors of these kernels, and this class does not see errors of tvm-ffi.
// Parallel loops run on our pool of threads, and memory that a kernel asks for comes from the C
// library. If the library holds code for GPUs, the kernels launch it (see `GpuKernels`).
class TvmKernels {
 public:
  using Function = int (*)(void* self, const KernelValue* args, int32_t num_args,
                           KernelValue* result);

  // Loads a library from the bytes of its file. Throws ModelError with `kUnsupported` if the
  // library does not load here, or needs a function that is not on the list of `tvm_imports.h`.
  explicit TvmKernels(std::string code);
  ~TvmKernels();
  TvmKernels(const TvmKernels&) = delete;
  TvmKernels& operator=(const TvmKernels&) = delete;

  // Returns the kernel called `name`. Throws ArtifactError if there is none.
  Function Find(const std::string& name) const;
  // The code for GPUs; null if there is none.
  GpuKernels* gpu() const { return gpu_.get(); }

 private:
  void PrepareGpuCode();

  void* handle_ = nullptr;
  int file_ = -1;
  std::unique_ptr<GpuKernels> gpu_;
};

// One call of a kernel. The arguments are the addresses of the tensors' headers, so a tensor can
// move without a change to the call. `kernels` stays loaded as long as this object lives.
class TvmKernel : public Kernel {
 public:
  TvmKernel(std::shared_ptr<const TvmKernels> kernels, const std::string& name,
            const std::vector<TensorHeader*>& args);
  void Run() override;

 private:
  std::shared_ptr<const TvmKernels> kernels_;
  TvmKernels::Function function_;
  std::vector<KernelValue> args_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_TVM_KERNELS_H_

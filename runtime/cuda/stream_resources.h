#ifndef RUNTIME_CUDA_STREAM_RESOURCES_H_
#define RUNTIME_CUDA_STREAM_RESOURCES_H_

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "runtime/cuda/api.h"

namespace tvm_interop {

// The workspace and the library handles of one stream. All library kernels on the stream share
// them, because the stream runs its kernels in order.
//
// Two streams must not share them. The streams run at the same time, so in one workspace the
// kernels of one stream would overwrite data that kernels of the other still use. Also, a handle
// puts its work on the stream that was set last.
class CudaStreamResources {
 public:
  explicit CudaStreamResources(int device) : device_(device) {}
  ~CudaStreamResources();
  CudaStreamResources(const CudaStreamResources&) = delete;
  CudaStreamResources& operator=(const CudaStreamResources&) = delete;

  // Returns at least `nbytes` bytes of the GPU's memory, for the next work on the stream. Allocates
  // memory if `nbytes` is larger than in all earlier calls. An allocation is not possible during a
  // graph capture, so executors run each kernel once before the capture.
  void* Workspace(size_t nbytes);

  // Returns the stream's handle of `library`, which `make` makes at the first call. `make` returns
  // a std::shared_ptr, which must always have the same type for the same library.
  template <typename Make>
  auto& Handle(const void* library, Make&& make) {
    std::shared_ptr<void>& handle = handles_[library];
    auto typed = std::static_pointer_cast<typename decltype(make())::element_type>(handle);
    if (typed == nullptr) handle = typed = make();
    return *typed;
  }

 private:
  int device_;
  size_t nbytes_ = 0;
  // The workspaces, each larger than the one before. The smaller ones are kept, because captured
  // graphs contain their addresses.
  std::vector<cuda::OwnedMemory> workspaces_;
  std::map<const void*, std::shared_ptr<void>> handles_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_STREAM_RESOURCES_H_

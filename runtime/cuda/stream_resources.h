#ifndef RUNTIME_CUDA_STREAM_RESOURCES_H_
#define RUNTIME_CUDA_STREAM_RESOURCES_H_

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "runtime/cuda/api.h"

namespace tvm_interop {

// What the kernels of libraries need beside their arguments, for one stream: a workspace, and a
// handle of each library. All kernels of a stream share them, since its work runs in order. Two
// streams run at once: in one workspace the kernels of one would overwrite what those of the other
// still compute with, and a handle puts its work on the stream that it was told last.
class CudaStreamResources {
 public:
  explicit CudaStreamResources(int device) : device_(device) {}
  CudaStreamResources(const CudaStreamResources&) = delete;
  CudaStreamResources& operator=(const CudaStreamResources&) = delete;

  // At least `nbytes` of the GPU's memory, for work that is put on the stream next. Allocates where
  // that is more than ever before, which no capture can: executors run each kernel once first.
  void* Workspace(size_t nbytes);

  // The stream's handle of `library`, which `make` made at the first call. `make` gives a
  // std::shared_ptr, always of one type for one library.
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
  // Each larger than the one before. Graphs that were captured keep addresses of the smaller ones.
  std::vector<cuda::OwnedMemory> workspaces_;
  std::map<const void*, std::shared_ptr<void>> handles_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_STREAM_RESOURCES_H_

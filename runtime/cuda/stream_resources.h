#ifndef RUNTIME_CUDA_STREAM_RESOURCES_H_
#define RUNTIME_CUDA_STREAM_RESOURCES_H_

#include <cstddef>
#include <map>
#include <memory>

#include "runtime/cuda/api.h"

namespace tvm_interop {

// Memory for the intermediate results of library kernels.
struct CudaWorkspace {
  CudaWorkspace(int device, size_t nbytes);
  size_t nbytes;
  cuda::OwnedMemory memory;
};

// The workspace and the library handles of one stream. All library kernels on the stream share
// them, because the stream runs its kernels in order.
//
// Two streams must not share a workspace or a handle. The streams run at the same time. So in one
// workspace, kernels of one stream would overwrite data that kernels of the other stream still use.
// A handle cannot be shared either, because it puts its work on the stream that was set last.
class CudaStreamResources {
 public:
  explicit CudaStreamResources(int device) : device_(device) {}
  ~CudaStreamResources();
  CudaStreamResources(const CudaStreamResources&) = delete;
  CudaStreamResources& operator=(const CudaStreamResources&) = delete;

  // Returns a workspace of at least `nbytes` bytes. If an executor still keeps the workspace that
  // was made last, and this workspace is large enough, it is returned again. The caller keeps the
  // workspace as long as a captured graph may contain its address.
  std::shared_ptr<CudaWorkspace> Reserve(size_t nbytes);

  // From now on, `Workspace` returns the memory of this workspace. The caller keeps the workspace
  // alive.
  void Use(const CudaWorkspace* workspace) { used_ = workspace; }

  // Returns at least `nbytes` bytes of the GPU's memory, for the next work on the stream. Throws
  // std::runtime_error if the workspace in use is smaller.
  void* Workspace(size_t nbytes) const;

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
  std::weak_ptr<CudaWorkspace> last_;  // Executors own the workspaces.
  const CudaWorkspace* used_ = nullptr;
  std::map<const void*, std::shared_ptr<void>> handles_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_STREAM_RESOURCES_H_

#include "runtime/cuda/stream_resources.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace tvm_interop {

CudaWorkspace::CudaWorkspace(int device, size_t nbytes) : nbytes(nbytes) {
  const cuda::DeviceGuard guard(device);
  const cuda::Api& api = cuda::Api::Get();
  void* address = nullptr;
  TVM_INTEROP_CUDA(api, Malloc, &address, nbytes);
  memory.reset(address);
}

CudaStreamResources::~CudaStreamResources() {
  // If the process cannot use its GPUs any more, keep the handles of libraries forever, because a
  // library must not destroy them in this state.
  if (!handles_.empty() && !cuda::IsUsable()) new auto(std::move(handles_));
}

std::shared_ptr<CudaWorkspace> CudaStreamResources::Reserve(size_t nbytes) {
  std::shared_ptr<CudaWorkspace> last = last_.lock();
  if (last == nullptr || last->nbytes < nbytes) {
    last = std::make_shared<CudaWorkspace>(device_, nbytes);
    last_ = last;
  }
  return last;
}

void* CudaStreamResources::Workspace(size_t nbytes) const {
  if (nbytes == 0) return nullptr;
  if (used_ == nullptr || used_->nbytes < nbytes) {
    throw std::runtime_error("a kernel needs a workspace of " + std::to_string(nbytes) +
                             " bytes, which no executor has reserved");
  }
  return used_->memory.get();
}

}  // namespace tvm_interop

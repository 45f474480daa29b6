#include "runtime/cuda/stream_resources.h"

#include <algorithm>
#include <utility>

namespace tvm_interop {

CudaStreamResources::~CudaStreamResources() {
  // A library must not destroy its handles if the process cannot use its GPUs any more.
  if (!cuda::IsUsable()) new auto(std::move(handles_));
}

void* CudaStreamResources::Workspace(size_t nbytes) {
  if (nbytes == 0) return nullptr;
  if (nbytes > nbytes_) {
    // The new workspace is at least twice as large as the last one. So all workspaces together take
    // at most twice the size of the largest one.
    const size_t larger = std::max(nbytes, 2 * nbytes_);
    const cuda::DeviceGuard guard(device_);
    const cuda::Api& api = cuda::Api::Get();
    void* memory = nullptr;
    TVM_INTEROP_CUDA(api, Malloc, &memory, larger);
    workspaces_.emplace_back(memory);
    nbytes_ = larger;
  }
  return workspaces_.back().get();
}

}  // namespace tvm_interop

#include "runtime/kernel_share.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace tvm_interop {
namespace {

// As in TVM's c_backend_api.h.
struct ParallelGroup {
  void* sync_handle;
  int32_t num_task;
};
using LoopBody = int (*)(int task, ParallelGroup* group, void* data);
using Launch = int (*)(LoopBody body, void* data, int num_task);

struct Share {
  int index = 0;
  int count = 0;  // 0 where the whole loop runs.
};
thread_local Share current;

// TVM's own, the same in every library; written before any kernel of ours runs.
std::atomic<Launch> tvm_launch{nullptr};

int LaunchShare(LoopBody body, void* data, int num_task) {
  if (current.count == 0) return tvm_launch.load(std::memory_order_relaxed)(body, data, num_task);
  ParallelGroup group{nullptr, current.count};
  return body(current.index, &group, data);
}

}  // namespace

KernelShare::KernelShare(int index, int count) { current = {index, count}; }
KernelShare::~KernelShare() { current = {}; }

void TakeOverParallelLoops(const std::string& path) {
  void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (opened == nullptr) throw std::runtime_error("kernel library `" + path + "` is not loaded");
  const std::unique_ptr<void, int (*)(void*)> library(opened, dlclose);
  auto* launch = static_cast<Launch*>(dlsym(library.get(), "__TVMBackendParallelLaunch"));
  if (launch == nullptr || *launch == LaunchShare) return;
  tvm_launch.store(*launch, std::memory_order_relaxed);
  *launch = LaunchShare;
}

}  // namespace tvm_interop

#include "runtime/cpu/kernel_share.h"

#include <dlfcn.h>

#include <memory>
#include <stdexcept>

#include "runtime/cpu/parallel_loop.h"

namespace tvm_interop {
namespace {

thread_local KernelShare::Number current;

constexpr int kTasksPerThread = 2;

// A parallel loop as TVM's compiled code passes it.
struct TVMLoop {
  ParallelLoopBody body;
  void* data;
};

int RunTask(int task, int tasks, void* loop) {
  ParallelGroup group{nullptr, tasks};
  const auto* tvm_loop = static_cast<TVMLoop*>(loop);
  return tvm_loop->body(task, &group, tvm_loop->data);
}

// Runs a parallel loop of a TVM kernel, or only one share of it if the calling thread runs a share
// of a kernel (see `kernel_share.h`). `num_task` is 0 if the kernel leaves the number of tasks to
// this function. The number of tasks never changes what a kernel computes, because each task of a
// loop writes its own part of the result.
int LaunchShare(ParallelLoopBody body, void* data, int num_task) {
  if (current.count > 0) {
    ParallelGroup group{nullptr, current.count};
    return body(current.index, &group, data);
  }
  TVMLoop loop{body, data};
  const int team = LoopTeam::Current();
  // Make more tasks than threads, so that a late or slow thread can take fewer tasks.
  const int tasks = num_task > 0 ? num_task : team == 1 ? 1 : team * kTasksPerThread;
  return RunParallelLoop(RunTask, &loop, tasks);
}

}  // namespace

KernelShare::Number KernelShare::Current() { return current; }

KernelShare::KernelShare(int index, int count) { current = {index, count}; }
KernelShare::~KernelShare() { current = {}; }

ParallelLaunch ParallelLoopFunction() { return LaunchShare; }

void TakeOverParallelLoops(const std::string& path) {
  void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (opened == nullptr) throw std::runtime_error("kernel library `" + path + "` is not loaded");
  const std::unique_ptr<void, int (*)(void*)> library(opened, dlclose);
  auto* launch = static_cast<ParallelLaunch*>(dlsym(library.get(), "__TVMBackendParallelLaunch"));
  if (launch == nullptr || *launch == LaunchShare) return;
  *launch = LaunchShare;
}

}  // namespace tvm_interop

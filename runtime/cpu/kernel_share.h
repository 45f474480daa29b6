#ifndef RUNTIME_CPU_KERNEL_SHARE_H_
#define RUNTIME_CPU_KERNEL_SHARE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/cpu/executor.h"

namespace tvm_interop {

// Runs a kernel as several operators, each of which computes one share of the result.
//
// TVM's kernels can run in shares, because their parallel loops are divided into shares. A
// library's kernel can run in shares if it asks for `KernelShare::Current`.
//
// A TVM kernel library has a function pointer named `__TVMBackendParallelLaunch`, which is part of
// TVM's C interface for compiled code. A kernel calls this function with a loop body and a number
// of tasks n, and the function runs task i of n for each i. We set the pointer to a function of our
// own, for two purposes. First, the loops run on our thread pool, so TVM's own pool never starts.
// Second, a call can run a single task as an operator of its own, while other streams run the other
// tasks.

// Makes the kernel library at `path` use our function for its parallel loops. Needed once for each
// library. A library without parallel loops is not changed. Throws std::runtime_error if the
// library is not loaded.
void TakeOverParallelLoops(const std::string& path);

// The type of a kernel's loop body, and of the function that runs a loop. TVM's c_backend_api.h has
// the same declarations.
struct ParallelGroup {
  void* sync_handle;
  int32_t num_task;
};
using ParallelLoopBody = int (*)(int task, ParallelGroup* group, void* data);
using ParallelLaunch = int (*)(ParallelLoopBody body, void* data, int num_task);

// Returns the function that `TakeOverParallelLoops` gives to kernel libraries.
ParallelLaunch ParallelLoopFunction();

// While this object lives, the calling thread's kernels compute share number `index` of `count`
// shares.
class KernelShare {
 public:
  struct Number {
    int index = 0;
    int count = 0;  // The number of shares; 0 if kernels run as a whole.
  };
  // The share that the calling thread's kernels compute.
  static Number Current();

  KernelShare(int index, int count);
  ~KernelShare();
  KernelShare(const KernelShare&) = delete;
  KernelShare& operator=(const KernelShare&) = delete;
};

// A kernel whose run computes only one share of another kernel.
class SharedKernel : public Kernel {
 public:
  SharedKernel(std::shared_ptr<Kernel> kernel, int index, int count)
      : kernel_(std::move(kernel)), index_(index), count_(count) {}

  void Run() override {
    const KernelShare share(index_, count_);
    kernel_->Run();
  }

 private:
  std::shared_ptr<Kernel> kernel_;
  int index_, count_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_KERNEL_SHARE_H_

#ifndef RUNTIME_CPU_KERNEL_SHARE_H_
#define RUNTIME_CPU_KERNEL_SHARE_H_

#include <string>

namespace tvm_interop {

// Parallel loops of TVM's kernels. Such a kernel hands its loops to a function that its library has
// a pointer to, `__TVMBackendParallelLaunch`, part of TVM's C interface for compiled code: called
// with a body and a number of tasks, it runs task i of n. We put a function of ours there, for two
// ends: loops run on our own pool of threads, so TVM's never starts; and a call can run one task
// alone, as an operator of its own, while other streams run the others.

// Takes over the loops of the kernel library at `path`, which is loaded. Once for a library; a
// library without parallel loops stays as it is. Throws std::runtime_error where it is not loaded.
void TakeOverParallelLoops(const std::string& path);

// While this lives, the calling thread's kernels run share `index` of `count` of their parallel
// loops.
class KernelShare {
 public:
  KernelShare(int index, int count);
  ~KernelShare();
  KernelShare(const KernelShare&) = delete;
  KernelShare& operator=(const KernelShare&) = delete;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_KERNEL_SHARE_H_

#ifndef RUNTIME_CPU_PARALLEL_LOOP_H_
#define RUNTIME_CPU_PARALLEL_LOOP_H_

namespace tvm_interop {

// Runs task `task` of `tasks`. Not zero where it fails.
using LoopTask = int (*)(int task, int tasks, void* data);

// Runs `body` for each task of `tasks`, on the calling thread and on helpers of the pool that have
// nothing else to do; tasks are claimed one by one. Returns 0, or what a task that failed returned:
// such a task is run once more by the calling thread, so that what it says of the failure is said
// there. A loop within a loop runs on its own thread alone.
int RunParallelLoop(LoopTask body, void* data, int tasks) noexcept;

// Threads that a parallel loop started by this thread is meant for, while this lives.
class LoopTeam {
 public:
  explicit LoopTeam(int threads);
  ~LoopTeam();
  LoopTeam(const LoopTeam&) = delete;
  LoopTeam& operator=(const LoopTeam&) = delete;

  // The innermost one's of the calling thread; as many as the pool has where there is none.
  static int Current();

 private:
  int before_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_PARALLEL_LOOP_H_

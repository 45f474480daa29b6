#ifndef RUNTIME_CPU_PARALLEL_LOOP_H_
#define RUNTIME_CPU_PARALLEL_LOOP_H_

namespace tvm_interop {

// A loop body: runs task `task` of `tasks`. Returns 0, or another number if the task fails.
using LoopTask = int (*)(int task, int tasks, void* data);

// Runs `body` for each task of `tasks`, on the calling thread and on idle helpers of the pool. The
// threads claim the tasks one by one. Returns 0 if all tasks succeed. If a task fails on any
// thread, the calling thread runs the task again and returns the result. So the task reports its
// failure on the calling thread. A loop inside another loop runs only on the thread that started
// it, and ends at the first task that fails.
int RunParallelLoop(LoopTask body, void* data, int tasks) noexcept;

// Sets the number of threads for parallel loops that the calling thread starts, while this object
// lives.
class LoopTeam {
 public:
  explicit LoopTeam(int threads);
  ~LoopTeam();
  LoopTeam(const LoopTeam&) = delete;
  LoopTeam& operator=(const LoopTeam&) = delete;

  // Returns the number of threads that the calling thread's innermost `LoopTeam` sets. Without a
  // `LoopTeam` it is the number of threads of the pool.
  static int Current();

 private:
  int before_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_PARALLEL_LOOP_H_

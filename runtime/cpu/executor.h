#ifndef RUNTIME_CPU_EXECUTOR_H_
#define RUNTIME_CPU_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/op_timing.h"
#include "runtime/core/timed.h"
#include "runtime/cpu/stream_run.h"
#include "runtime/cpu/thread_pool.h"

namespace tvm_interop {

// One operator with its arguments bound. `Run` throws if the operator fails. Any thread may run the
// kernel, but only one thread at a time.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void Run() = 0;
};

// One operator of a plan. The operators of a plan come in a topological order.
struct PlannedOp {
  std::string name;
  Kernel* kernel = nullptr;  // The caller owns the kernel, which must outlive the executor.
  int stream = 0;
  // The operators on other streams that must end before this operator starts, as indices of earlier
  // `PlannedOp`s.
  std::vector<int> waits;
};

// Runs a plan on CPU streams, with the calling thread and a thread pool. Each stream runs its
// operators in order. An operator starts once the operators that it waits for have ended.
//
// If there is only one stream, the calling thread runs the operators in a plain loop. This saves
// the time to claim the stream.
class CpuExecutor : public Timed, private OperatorWork {
 public:
  // `threads` is the number of threads for the parallel loops of one stream's kernels; 0 means all
  // threads of the pool. Throws std::runtime_error if there is no stream, if an operator's stream
  // does not exist, if an operator waits for an operator that is not earlier in `ops`, or if the
  // system refuses to start a thread.
  //
  // `guests` is the pool to run in. Null means the pool of the process. A forked child always uses
  // the pool of the process, because the guests stayed in the parent.
  CpuExecutor(int num_streams, int threads, const std::vector<PlannedOp>& ops,
              std::shared_ptr<ThreadPool> guests = nullptr);
  ~CpuExecutor() override;

  // Runs every operator once. If an operator fails, the operators that have not begun are skipped.
  // Then std::runtime_error names the failed operator. Also throws std::runtime_error if another
  // thread is running this executor.
  void Run();

  // Runs every operator once, like `Run`, and returns the times at which each operator began and
  // ended.
  std::vector<OpTiming> Profile();

  // Runs the plan `number` times, one run after the other, and returns the time in seconds.
  double Time(int number) override;

  int num_events() const { return streams_.num_signals(); }

 private:
  class BusyGuard;

  struct Step {
    Kernel* kernel;
    int stream;
  };

  // Runs every operator once. Writes when each operator began and ended into `timings`, unless
  // `timings` is null.
  void RunInto(OpTiming* timings);
  void RunOperator(int op, int thread) noexcept override;
  void RunTimed(int op, int thread) noexcept;
  void RunKernel(int op) noexcept;
  void RethrowFailure();
  ThreadPool& Pool() const;
  void StartHelpers();

  const std::shared_ptr<ThreadPool> guests_;
  const int num_streams_;
  const int threads_;
  std::vector<std::string> names_;
  std::vector<Step> steps_;
  StreamRun streams_;

  // 0 while no thread runs this executor. Otherwise 1 plus the `ForkGeneration` of the process in
  // which a thread runs it. By this number, a forked child sees that the thread belongs to its
  // parent.
  std::atomic<int> busy_{0};

  // The first failure of a run. One thread claims `failed_`, and only that thread writes
  // `failed_op_` and `failure_`. The caller reads both after all streams have ended.
  std::atomic<bool> failed_{false};
  int failed_op_ = -1;
  std::string failure_;

  // The list of timings, or null in a run that is not timed. The thread that runs an operator
  // writes the operator's entry.
  OpTiming* timings_ = nullptr;
  int64_t profile_began_ns_ = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_EXECUTOR_H_

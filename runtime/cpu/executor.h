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

namespace tvm_interop {

// One operator, its arguments bound. `Run` throws where the operator fails. Any thread may run it,
// one at a time.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void Run() = 0;
};

// One operator of a plan, in an order that respects the dependencies.
struct PlannedOp {
  std::string name;
  Kernel* kernel = nullptr;  // Owned by the plan's maker; outlives the executor.
  int stream = 0;
  // Operators on other streams that must have ended first: indices of earlier `PlannedOp`s.
  std::vector<int> waits;
};

// Runs a plan on CPU streams, on the calling thread and the process's pool: each stream its
// operators in order, each operator once those it waits for have ended.
//
// One stream is run by the calling thread as it stands: nothing is claimed, and nothing paid for.
class CpuExecutor : public Timed, private OperatorWork {
 public:
  // `threads` is how many threads the parallel loops of one stream's kernels are meant for; 0 for
  // all that the pool has. Throws std::runtime_error for a stream that is not there, a wait for an
  // operator that is not earlier in `ops`, and where the system refuses a thread.
  CpuExecutor(int num_streams, int threads, const std::vector<PlannedOp>& ops);
  ~CpuExecutor() override;

  // Runs every operator once. Where one fails, those not yet begun are skipped, and the failure is
  // thrown as std::runtime_error that names the operator. One run at a time: throws it too where
  // another thread runs this.
  void Run();

  // The same, and tells when each operator began and ended.
  std::vector<OpTiming> Profile();

  // Seconds that `number` runs took, one after the other.
  double Time(int number) override;

  int num_events() const { return streams_.num_signals(); }

 private:
  class BusyGuard;

  struct Step {
    Kernel* kernel;
    int stream;
  };

  // Runs once; tells when each operator began and ended where `timings` is not null.
  void RunInto(OpTiming* timings);
  void RunOperator(int op, int thread) noexcept override;
  void RunTimed(int op, int thread) noexcept;
  void RunKernel(int op) noexcept;
  void RethrowFailure();
  void StartHelpers();

  const int num_streams_;
  const int threads_;
  std::vector<std::string> names_;
  std::vector<Step> steps_;
  StreamRun streams_;

  // Not zero while a thread runs this: one more than the process's number of forks, so that a child
  // sees that the thread stayed in the parent.
  std::atomic<int> busy_{0};

  // The first failure of a run. `failed_` is claimed by one thread, which alone then writes the
  // other two; the caller reads them after all streams have ended.
  std::atomic<bool> failed_{false};
  int failed_op_ = -1;
  std::string failure_;

  // Null in a run that is not timed; each operator's entry is written by the thread that runs it.
  OpTiming* timings_ = nullptr;
  int64_t profile_began_ns_ = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_EXECUTOR_H_

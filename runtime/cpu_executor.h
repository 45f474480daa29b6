#ifndef RUNTIME_CPU_EXECUTOR_H_
#define RUNTIME_CPU_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cpu_streams.h"
#include "runtime/event.h"
#include "runtime/op_timing.h"
#include "runtime/timed.h"

namespace tvm_interop {

// One operator, its arguments bound. `Run` throws where the operator fails.
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

// Runs a plan on CPU streams: each stream its operators in order, waiting where the plan says so.
class CpuExecutor : public Timed, private StreamWork {
 public:
  // Throws std::runtime_error for a stream the pool lacks or a wait for an operator that is not
  // earlier in `ops`.
  CpuExecutor(std::shared_ptr<CpuStreams> streams, const std::vector<PlannedOp>& ops);

  // Runs every operator once. Where one fails, those not yet begun are skipped, and the failure is
  // thrown as std::runtime_error that names the operator.
  void Run();

  // The same, and tells when each operator began and ended.
  std::vector<OpTiming> Profile();

  // Seconds that `number` runs took, one after the other.
  double Time(int number) override;

  int num_events() const { return num_events_; }

 private:
  // What a stream does for one operator: waits, runs, signals.
  struct Step {
    Kernel* kernel;
    Event* signal;  // Null where no other stream waits for this operator.
    uint32_t waits_begin;
    uint32_t waits_end;
    int op;
  };
  struct Stream {
    std::vector<Step> steps;
    std::vector<Event*> waits;
  };

  void RunStream(int stream, uint64_t run) noexcept override;
  template <bool kProfile>
  void RunSteps(int stream, uint64_t run) noexcept;
  void RunKernel(const Step& step) noexcept;
  void RethrowFailure();

  std::shared_ptr<CpuStreams> streams_;
  std::vector<std::string> names_;
  std::vector<Stream> programs_;
  std::unique_ptr<Event[]> events_;
  int num_events_ = 0;

  // The first failure of a run. `failed_` is claimed by one stream, which alone then writes the
  // other two; the caller reads them after all streams have ended.
  std::atomic<bool> failed_{false};
  int failed_op_ = -1;
  std::string failure_;

  // Non-null while `Profile` runs; each stream writes only its own operators' entries.
  OpTiming* timings_ = nullptr;
  int64_t profile_began_ns_ = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_EXECUTOR_H_

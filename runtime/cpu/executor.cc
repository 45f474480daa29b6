#include "runtime/cpu/executor.h"

#include <exception>
#include <stdexcept>
#include <utility>

#include "runtime/core/check_plan.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/cpu/spinning.h"
#include "runtime/cpu/thread_pool.h"

namespace tvm_interop {
namespace {

std::vector<StreamRun::Op> OnStreams(const std::vector<PlannedOp>& ops, int num_streams) {
  if (num_streams < 1) {
    throw std::runtime_error("a CPU executor needs at least one stream, got " +
                             std::to_string(num_streams));
  }
  CheckPlan(ops, num_streams);
  std::vector<StreamRun::Op> on_streams;
  for (const PlannedOp& op : ops) on_streams.push_back({op.stream, op.waits});
  return on_streams;
}

}  // namespace

class CpuExecutor::BusyGuard {
 public:
  explicit BusyGuard(std::atomic<int>* busy) : busy_(busy) {
    const int mine = ForkGeneration() + 1;
    int other = 0;
    if (busy_->compare_exchange_strong(other, mine, std::memory_order_acquire)) return;
    if (other == mine) {
      throw std::runtime_error(
          "this module is already running in another thread; load a second one to run two at once");
    }
    throw std::runtime_error(
        "this module was running in another thread when the process forked, and that thread stayed "
        "in the parent; load it again in the child");
  }
  ~BusyGuard() { busy_->store(0, std::memory_order_release); }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  std::atomic<int>* busy_;
};

CpuExecutor::CpuExecutor(int num_streams, int threads, const std::vector<PlannedOp>& ops,
                         std::shared_ptr<ThreadPool> guests)
    : guests_(std::move(guests)),
      num_streams_(num_streams),
      threads_(threads),
      streams_(num_streams, OnStreams(ops, num_streams), this) {
  for (const PlannedOp& op : ops) {
    names_.push_back(op.name);
    steps_.push_back({op.kernel, op.stream});
  }
  StartHelpers();
}

CpuExecutor::~CpuExecutor() {
  if (num_streams_ == 1) return;
  if (guests_ != nullptr && guests_->IsHere()) guests_->WaitUntilLeft(&streams_);
  // If there is no pool, there are no helpers to wait for. This happens in a forked child, which
  // has none of its parent's helpers.
  ThreadPool* const pool = ThreadPool::IfThere();
  if (pool != nullptr) pool->WaitUntilLeft(&streams_);
}

ThreadPool& CpuExecutor::Pool() const {
  return guests_ != nullptr && guests_->IsHere() ? *guests_ : ThreadPool::Get();
}

void CpuExecutor::StartHelpers() {
  ThreadPool& pool = Pool();
  const int each = threads_ > 0 ? threads_ : pool.num_threads();
  pool.Start(num_streams_ * each - 1);
}

void CpuExecutor::Run() { RunInto(nullptr); }

std::vector<OpTiming> CpuExecutor::Profile() {
  std::vector<OpTiming> timings(names_.size());
  RunInto(timings.data());
  return timings;
}

void CpuExecutor::RunInto(OpTiming* timings) {
  const BusyGuard guard(&busy_);
  // `timings_` is set while `guard` marks the executor as busy. So a call that `guard` refuses does
  // not change the run in progress.
  timings_ = timings;
  profile_began_ns_ = timings == nullptr ? 0 : NowNs();
  StartHelpers();  // Starts helpers only if some are missing, for example in a forked child.
  ThreadPool& pool = Pool();
  if (num_streams_ > 1) {
    streams_.Run(&pool);
  } else {
    const ThreadPool::CallerCount counted(&pool);
    for (int op = 0; op < static_cast<int>(steps_.size()); ++op) RunOperator(op, 0);
  }
  if (failed_.load(std::memory_order_relaxed)) RethrowFailure();
}

double CpuExecutor::Time(int number) {
  const int64_t began = NowNs();
  for (int i = 0; i < number; ++i) Run();
  return static_cast<double>(NowNs() - began) * 1e-9;
}

void CpuExecutor::RunOperator(int op, int thread) noexcept {
  // After a failure, the remaining operators are skipped one by one, so that every stream ends.
  if (timings_ != nullptr) {
    RunTimed(op, thread);
  } else if (!failed_.load(std::memory_order_relaxed)) {
    RunKernel(op);
  }
}

void CpuExecutor::RunTimed(int op, int thread) noexcept {
  const int64_t on_core_ns = OnCoreNs();
  const int64_t start_ns = NowNs();
  if (!failed_.load(std::memory_order_relaxed)) RunKernel(op);
  const int64_t end_ns = NowNs();
  OpTiming& timing = timings_[op];
  timing.op = op;
  timing.stream = steps_[op].stream;
  timing.thread = thread;
  timing.start_ns = start_ns - profile_began_ns_;
  timing.end_ns = end_ns - profile_began_ns_;
  timing.on_core_ns = std::min(OnCoreNs() - on_core_ns, end_ns - start_ns);
}

void CpuExecutor::RunKernel(int op) noexcept {
  const LoopTeam team(threads_);
  std::string what;
  try {
    steps_[op].kernel->Run();
    return;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an exception of unknown type";
  }
  if (!failed_.exchange(true, std::memory_order_relaxed)) {
    failed_op_ = op;
    failure_ = std::move(what);
  }
}

void CpuExecutor::RethrowFailure() {
  const std::string message = "operator `" + names_[failed_op_] + "` failed: " + failure_;
  failed_.store(false, std::memory_order_relaxed);
  throw std::runtime_error(message);
}

}  // namespace tvm_interop

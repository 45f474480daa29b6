#include "runtime/cpu_executor.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "runtime/check_plan.h"

namespace tvm_interop {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

CpuExecutor::CpuExecutor(std::shared_ptr<CpuStreams> streams, const std::vector<PlannedOp>& ops)
    : streams_(std::move(streams)), programs_(streams_->num_streams()) {
  CheckPlan(ops, streams_->num_streams());
  // An event for each operator that another stream waits for, and for no other.
  std::vector<int> event_of(ops.size(), -1);
  for (const PlannedOp& op : ops) {
    for (int wait : op.waits) {
      if (event_of[wait] < 0) event_of[wait] = num_events_++;
    }
  }
  events_ = std::make_unique<Event[]>(num_events_);
  for (size_t i = 0; i < ops.size(); ++i) {
    Stream& program = programs_[ops[i].stream];
    Step step;
    step.kernel = ops[i].kernel;
    step.signal = event_of[i] < 0 ? nullptr : &events_[event_of[i]];
    step.op = static_cast<int>(i);
    step.waits_begin = static_cast<uint32_t>(program.waits.size());
    for (int wait : ops[i].waits) program.waits.push_back(&events_[event_of[wait]]);
    step.waits_end = static_cast<uint32_t>(program.waits.size());
    program.steps.push_back(step);
    names_.push_back(ops[i].name);
  }
}

void CpuExecutor::Run() {
  streams_->Run(this);
  if (failed_.load(std::memory_order_relaxed)) RethrowFailure();
}

std::vector<OpTiming> CpuExecutor::Profile() {
  std::vector<OpTiming> timings(names_.size());
  timings_ = timings.data();
  profile_began_ns_ = NowNs();
  try {
    Run();
  } catch (...) {
    timings_ = nullptr;
    throw;
  }
  timings_ = nullptr;
  return timings;
}

double CpuExecutor::Time(int number) {
  const int64_t began = NowNs();
  for (int i = 0; i < number; ++i) Run();
  return static_cast<double>(NowNs() - began) * 1e-9;
}

void CpuExecutor::RunStream(int stream, uint64_t run) noexcept {
  if (timings_ == nullptr) {
    RunSteps<false>(stream, run);
  } else {
    RunSteps<true>(stream, run);
  }
}

template <bool kProfile>
void CpuExecutor::RunSteps(int stream, uint64_t run) noexcept {
  const Stream& program = programs_[stream];
  for (const Step& step : program.steps) {
    for (uint32_t i = step.waits_begin; i < step.waits_end; ++i) {
      program.waits[i]->Wait(run, streams_->spin());
    }
    const int64_t start_ns = kProfile ? NowNs() : 0;
    // After a failure the waits and signals go on, or the other streams would hang.
    if (!failed_.load(std::memory_order_relaxed)) RunKernel(step);
    if (kProfile) {
      timings_[step.op] = {step.op, stream, start_ns - profile_began_ns_,
                           NowNs() - profile_began_ns_};
    }
    if (step.signal != nullptr) step.signal->Signal(run);
  }
}

void CpuExecutor::RunKernel(const Step& step) noexcept {
  std::string what;
  try {
    step.kernel->Run();
    return;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an exception of unknown type";
  }
  if (!failed_.exchange(true, std::memory_order_relaxed)) {
    failed_op_ = step.op;
    failure_ = std::move(what);
  }
}

void CpuExecutor::RethrowFailure() {
  const std::string message = "operator `" + names_[failed_op_] + "` failed: " + failure_;
  failed_.store(false, std::memory_order_relaxed);
  throw std::runtime_error(message);
}

}  // namespace tvm_interop

#include "passes/simulate/serving.h"

#include <algorithm>
#include <limits>

#include "passes/graph/error.h"

namespace tvm_interop {

int ServingEngine::Start(const ServedProgram& program, uint64_t present, bool alone) {
  if (present == 0 || (present & ~program.all_parts()) != 0) {
    throw ScheduleError(
        "an instance runs no part of its program, or a part that the program does not have; "
        "choose one or more of its parts");
  }
  if (program.Of(present).ops.empty()) {
    throw ScheduleError("an instance runs no operator; give graphs that have some");
  }
  if (runs_alone_ || (alone && num_running_ > 0)) {
    throw ScheduleError(
        "an instance was started beside an instance that is to run alone; start it when the other "
        "has ended");
  }
  int number;
  if (free_.empty()) {
    number = static_cast<int>(instances_.size());
    instances_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  ++num_running_;
  if (alone) {
    runs_alone_ = true;
    const AloneRun run = program.Alone(present, device_);
    alone_busy_us_ += run.busy_us;
    SetTimer(now_us_ + run.us, number, kEnd);
    return number;
  }
  Instance& instance = instances_[number];
  instance.variant = &program.Of(present);
  const bool is_launched = device_.launch_us > 0;
  instance.waits_for.clear();
  for (const auto& op : instance.variant->ops) {
    instance.waits_for.push_back(op.waits_for + is_launched);
  }
  instance.segment = 0;
  BeginSegment(number);
  return number;
}

int ServingEngine::Advance(double until_us) {
  while (ended_.empty()) {
    const double timer_us =
        timers_.empty() ? std::numeric_limits<double>::infinity() : timers_.top().at_us;
    const double next_us = std::min(until_us, timer_us);
    if (shared_.idle()) {
      if (next_us == std::numeric_limits<double>::infinity()) return -1;
      now_us_ = std::max(now_us_, next_us);
    } else {
      ended_ops_.clear();
      const double most_us = std::max(0.0, next_us - now_us_);
      const double step_us = shared_.Advance(most_us, &ended_ops_);
      now_us_ = step_us >= most_us ? std::max(now_us_, next_us) : now_us_ + step_us;
      CheckSimulatedTime(now_us_);
      for (int64_t tag : ended_ops_) {
        const int number = static_cast<int>(tag >> 32);
        Instance& instance = instances_[number];
        const auto& variant = *instance.variant;
        const auto& op = variant.ops[tag & 0xffffffff];
        for (int i = op.first_successor; i < op.last_successor; ++i) {
          Ready(number, variant.successors[i]);
        }
        if (--instance.left == 0) EndSegment(number);
      }
    }
    while (!timers_.empty() && timers_.top().at_us <= now_us_) {
      const Timer timer = timers_.top();
      timers_.pop();
      Fire(timer);
    }
    if (ended_.empty() && now_us_ >= until_us) return -1;
  }
  const int number = ended_.front();
  ended_.pop();
  free_.push_back(number);
  return number;
}

void ServingEngine::SetTimer(double at_us, int instance, int op) {
  CheckSimulatedTime(at_us);
  timers_.push({at_us, num_timers_++, instance, op});
}

void ServingEngine::Fire(const Timer& timer) {
  if (timer.op == kEnd) {
    runs_alone_ = false;
    End(timer.instance);
  } else if (timer.op == kSegment) {
    Instance& instance = instances_[timer.instance];
    ++instance.segment;
    if (instance.segment + 1 < static_cast<int>(instance.variant->segment_begin.size())) {
      BeginSegment(timer.instance);
    } else {
      End(timer.instance);
    }
  } else {
    Ready(timer.instance, timer.op);
  }
}

void ServingEngine::BeginSegment(int number) {
  Instance& instance = instances_[number];
  const auto& variant = *instance.variant;
  const int begin = variant.segment_begin[instance.segment];
  const int end = variant.segment_begin[instance.segment + 1];
  instance.left = end - begin;
  for (int op = begin; op < end; ++op) {
    if (device_.launch_us > 0) {
      host_free_us_ = std::max(host_free_us_, now_us_) + device_.launch_us;
      SetTimer(host_free_us_, number, op);
    } else if (variant.ops[op].waits_for == 0) {
      ++instance.waits_for[op];
      Ready(number, op);
    }
  }
}

void ServingEngine::Ready(int number, int op) {
  Instance& instance = instances_[number];
  if (--instance.waits_for[op] > 0) return;
  const auto& started = instance.variant->ops[op];
  shared_.Start(static_cast<int64_t>(number) << 32 | op, device_.wait_us * started.num_waits,
                started.work_us, started.cores, started.memory_share);
}

void ServingEngine::EndSegment(int number) {
  const Instance& instance = instances_[number];
  const double fee_us = instance.variant->has_barriers ? device_.barrier_us : 0;
  const Timer timer = {now_us_, 0, number, kSegment};
  if (fee_us > 0) {
    SetTimer(now_us_ + fee_us, number, kSegment);
  } else {
    Fire(timer);
  }
}

void ServingEngine::End(int number) {
  --num_running_;
  ended_.push(number);
}

}  // namespace tvm_interop

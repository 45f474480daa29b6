#include "passes/simulate/shared_device.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/graph/error.h"

namespace tvm_interop {

void CheckSimulatedTime(double value) {
  if (std::isfinite(value)) return;
  throw ScheduleError(
      "the simulated run takes longer than a number can hold: `cores` or `bandwidth` is too small, "
      "or the latencies are too long");
}

double SharedDevice::Advance(double most_us, std::vector<int64_t>* ended) {
  SetRates();
  double step_us = std::numeric_limits<double>::infinity();
  for (const Running& running : running_) step_us = std::min(step_us, TimeLeft(running));
  CheckSimulatedTime(step_us);
  step_us = std::min(step_us, most_us);
  bool has_ended = false;
  for (Running& running : running_) {
    // If this step ends the delay or the work of an operator, the operator's remaining time is set
    // to exactly 0. Otherwise rounding could leave a little time over.
    const bool is_through = TimeLeft(running) <= step_us;
    if (running.wait_us > 0) {
      running.wait_us = is_through ? 0 : running.wait_us - step_us;
      has_changed_ = has_changed_ || running.wait_us <= 0;
    } else {
      running.work_us = is_through ? 0 : running.work_us - step_us * running.rate;
    }
    // Look at every operator, because rounding may let several operators end in the same step.
    has_ended = has_ended || (running.wait_us <= 0 && running.work_us <= 0);
  }
  busy_us_ += step_us * utilisation_;
  if (!has_ended) return step_us;
  has_changed_ = true;
  size_t kept = 0;
  for (const Running& running : running_) {
    if (running.wait_us <= 0 && running.work_us <= 0) {
      ended->push_back(running.tag);
    } else {
      running_[kept++] = running;
    }
  }
  running_.resize(kept);
  return step_us;
}

void SharedDevice::SetRates() {
  if (!has_changed_) return;
  has_changed_ = false;
  double cores = 0;
  double bandwidth = 0;
  int num_running = 0;
  for (const Running& running : running_) {
    if (running.wait_us > 0) continue;
    cores += running.cores;
    bandwidth += running.memory_share;
    ++num_running;
  }
  const double compute_slowdown = std::max(1.0, cores / limits_.cores);
  const double memory_slowdown = std::max(1.0, bandwidth / limits_.bandwidth);
  const double interference = 1 + limits_.interference * std::max(0, num_running - 1);
  CheckSimulatedTime(compute_slowdown + memory_slowdown + interference);
  for (Running& running : running_) {
    const double share = running.memory_share;
    running.rate = 1 / (((1 - share) * compute_slowdown + share * memory_slowdown) * interference);
  }
  utilisation_ = std::min(1.0, cores / limits_.cores);
}

}  // namespace tvm_interop

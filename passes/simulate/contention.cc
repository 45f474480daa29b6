#include "passes/simulate/contention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/graph/error.h"
#include "passes/graph/stream_order.h"

namespace tvm_interop {
namespace {

struct Running {
  int op;
  double wait_us;  // left to pay for waits
  double work_us;  // left to do, as it would take alone
  double rate = 1;
};

// Nothing would ever end after a time that is no number.
void CheckFinite(double value) {
  if (std::isfinite(value)) return;
  throw ScheduleError(
      "the simulated run takes longer than a number can hold: `cores` or `bandwidth` is too small, "
      "or the latencies are too long");
}

class Device {
 public:
  Device(const std::vector<double>& op_us, const Contention& contention)
      : op_us_(op_us), contention_(contention) {}

  bool idle() const { return running_.empty(); }
  void Start(int op, size_t num_waits) {
    running_.push_back({op, contention_.wait_us * static_cast<double>(num_waits), op_us_[op]});
  }

  // Runs until an operator ends, or has paid for its waits, and returns how long that took.
  double Advance(std::vector<int>* ended) {
    SetRates();
    double step_us = std::numeric_limits<double>::infinity();
    for (const Running& running : running_) step_us = std::min(step_us, TimeLeft(running));
    CheckFinite(step_us);
    for (Running& running : running_) {
      // Those that are through are so exactly, whatever the rounding.
      const bool is_through = TimeLeft(running) <= step_us;
      if (running.wait_us > 0) {
        running.wait_us = is_through ? 0 : running.wait_us - step_us;
      } else {
        running.work_us = is_through ? 0 : running.work_us - step_us * running.rate;
      }
    }
    // Rounding may end others in the same step: whatever leaves has ended.
    const auto has_ended = [](const Running& running) {
      return running.wait_us <= 0 && running.work_us <= 0;
    };
    for (const Running& running : running_) {
      if (has_ended(running)) ended->push_back(running.op);
    }
    running_.erase(std::remove_if(running_.begin(), running_.end(), has_ended), running_.end());
    return step_us;
  }

 private:
  static double TimeLeft(const Running& running) {
    return running.wait_us > 0 ? running.wait_us : running.work_us / running.rate;
  }

  void SetRates() {
    double cores = 0;
    double bandwidth = 0;
    for (const Running& running : running_) {
      if (running.wait_us > 0) continue;
      cores += contention_.op_cores[running.op];
      bandwidth += contention_.memory_share[running.op];
    }
    const double compute_slowdown = std::max(1.0, cores / contention_.cores);
    const double memory_slowdown = std::max(1.0, bandwidth / contention_.bandwidth);
    CheckFinite(compute_slowdown + memory_slowdown);
    for (Running& running : running_) {
      const double share = contention_.memory_share[running.op];
      running.rate = 1 / ((1 - share) * compute_slowdown + share * memory_slowdown);
    }
  }

  const std::vector<double>& op_us_;
  const Contention& contention_;
  std::vector<Running> running_;
};

}  // namespace

Schedule SimulateContention(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                            const std::vector<std::vector<int>>& waits,
                            const std::vector<double>& op_us, const Contention& contention) {
  const std::vector<StreamPlace> places = StreamPlaces(graph, streams);
  const auto successors = OrderSuccessors(graph, streams, WaitEdges(graph, waits));
  OrderOrThrow(graph, successors);
  std::vector<int> waits_for(graph.num_ops());
  for (const auto& targets : successors) {
    for (int target : targets) ++waits_for[target];
  }

  Schedule schedule;
  schedule.streams = streams;
  std::vector<size_t> row_of(graph.num_ops());
  Device device(op_us, contention);
  double now_us = 0;
  const auto start = [&](int op) {
    row_of[op] = schedule.timeline.size();
    schedule.timeline.push_back({op, places[op].stream, now_us, now_us});
    device.Start(op, waits[op].size());
  };
  for (int op = 0; op < graph.num_ops(); ++op) {
    if (waits_for[op] == 0) start(op);
  }
  std::vector<int> ended;
  while (!device.idle()) {
    ended.clear();
    now_us += device.Advance(&ended);
    CheckFinite(now_us);
    for (int op : ended) schedule.timeline[row_of[op]].finish_us = now_us;
    for (int op : ended) {
      for (int next : successors[op]) {
        if (--waits_for[next] == 0) start(next);
      }
    }
  }
  schedule.makespan_us = now_us;
  return schedule;
}

}  // namespace tvm_interop

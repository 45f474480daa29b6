#include "passes/lios.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "passes/error.h"

namespace tvm_interop {
namespace {

struct Waiting {
  double latency_us;
  int arrival;
  int op;
  bool operator<(const Waiting& other) const {
    if (latency_us != other.latency_us) return latency_us < other.latency_us;
    return arrival > other.arrival;
  }
};

}  // namespace

Schedule ScheduleLios(const OpGraph& graph, const std::vector<double>& op_us, int num_streams) {
  if (num_streams < 1) {
    throw ScheduleError("`streams` is " + std::to_string(num_streams) + "; it must be 1 or more");
  }
  const int n = graph.num_ops();
  std::priority_queue<Waiting> wait_list;
  int arrivals = 0;
  std::vector<int> unscheduled_predecessors(n);
  for (int op = 0; op < n; ++op) {
    unscheduled_predecessors[op] = static_cast<int>(graph.predecessors(op).size());
    if (unscheduled_predecessors[op] == 0) wait_list.push({op_us[op], arrivals++, op});
  }

  Schedule schedule;
  schedule.timeline.reserve(n);
  schedule.streams.resize(std::min(num_streams, n));
  std::vector<double> free_us(schedule.streams.size());
  std::vector<double> finish_us(n);
  while (!wait_list.empty()) {
    const int op = wait_list.top().op;
    wait_list.pop();
    double ready_us = 0;
    for (int source : graph.predecessors(op)) ready_us = std::max(ready_us, finish_us[source]);
    size_t best = 0;
    double best_finish = std::max(free_us[0], ready_us) + op_us[op];
    for (size_t stream = 1; stream < free_us.size(); ++stream) {
      const double finish = std::max(free_us[stream], ready_us) + op_us[op];
      if (finish < best_finish) {
        best = stream;
        best_finish = finish;
      }
    }
    const double start = std::max(free_us[best], ready_us);
    schedule.streams[best].push_back(op);
    schedule.timeline.push_back({op, static_cast<int>(best), start, best_finish});
    schedule.makespan_us = std::max(schedule.makespan_us, best_finish);
    free_us[best] = finish_us[op] = best_finish;
    for (int next : graph.successors(op)) {
      if (--unscheduled_predecessors[next] == 0) wait_list.push({op_us[next], arrivals++, next});
    }
  }
  // Ties go to the lowest stream, so the unused ones are the last.
  while (!schedule.streams.empty() && schedule.streams.back().empty()) schedule.streams.pop_back();
  return schedule;
}

}  // namespace tvm_interop

#include "passes/schedulers/lios_plus.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "passes/schedulers/list_schedule.h"

namespace tvm_interop {
namespace {

std::vector<double> LongestRemainingPaths(const OpGraph& graph, const std::vector<double>& op_us) {
  std::vector<double> path_us = op_us;
  const std::vector<int>& order = graph.topological_order();
  for (auto op = order.rbegin(); op != order.rend(); ++op) {
    double longest = 0;
    for (int next : graph.successors(*op)) longest = std::max(longest, path_us[next]);
    path_us[*op] += longest;
  }
  return path_us;
}

}  // namespace

Schedule ScheduleLiosPlus(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                          double wait_us) {
  if (!std::isfinite(wait_us) || wait_us < 0) {
    throw ScheduleError("`wait_us` is " + std::to_string(wait_us) +
                        "; it must be finite and not negative");
  }
  const std::vector<double> path_us = LongestRemainingPaths(graph, op_us);
  std::vector<int> sources;  // the streams of the operators that an operator reads, each once
  const auto choose = [&](int op, double ready_us, const FreeStreams& free,
                          const std::vector<int>& stream_of) {
    sources.clear();
    for (int source : graph.predecessors(op)) sources.push_back(stream_of[source]);
    std::sort(sources.begin(), sources.end());
    sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    // A source stream is a stream with an operator that this operator reads. First take the stream
    // that is free earliest. On it, the operator must wait for every source stream. Then try each
    // source stream itself, where the operator needs one wait less.
    StreamChoice best = EarliestStream(ready_us, free);
    best.start_us += wait_us * static_cast<double>(sources.size());
    for (int stream : sources) {
      const double start_us =
          std::max(free[stream], ready_us) + wait_us * static_cast<double>(sources.size() - 1);
      const bool is_better =
          start_us != best.start_us ? start_us < best.start_us : stream < best.stream;
      if (is_better) best = {stream, start_us};
    }
    return best;
  };
  return ListSchedule(graph, op_us, num_streams, PriorityWaitList(path_us), choose);
}

}  // namespace tvm_interop

#include "passes/schedulers/greedy.h"

#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "passes/graph/error.h"

namespace tvm_interop {

Schedule ScheduleGreedy(const OpGraph& graph, int max_groups) {
  if (max_groups < 0) {
    throw ScheduleError("`max_groups` is " + std::to_string(max_groups) +
                        "; it must be 0 (no limit) or more");
  }
  std::priority_queue<int, std::vector<int>, std::greater<int>> ready;
  std::vector<int> waits_for(graph.num_ops());
  for (int op = 0; op < graph.num_ops(); ++op) {
    waits_for[op] = static_cast<int>(graph.predecessors(op).size());
    if (waits_for[op] == 0) ready.push(op);
  }
  Schedule schedule;
  while (!ready.empty()) {
    Stage stage;
    while (!ready.empty() &&
           (max_groups == 0 || static_cast<int>(stage.groups.size()) < max_groups)) {
      stage.streams.push_back(static_cast<int>(stage.groups.size()));
      stage.groups.push_back({ready.top()});
      ready.pop();
    }
    for (const auto& group : stage.groups) {
      for (int next : graph.successors(group.front())) {
        if (--waits_for[next] == 0) ready.push(next);
      }
    }
    schedule.stages.push_back(std::move(stage));
  }
  return schedule;
}

}  // namespace tvm_interop

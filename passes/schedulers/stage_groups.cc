#include "passes/schedulers/stage_groups.h"

#include <algorithm>
#include <unordered_map>

namespace tvm_interop {

void AppendStage(const OpGraph& graph, const std::vector<int>& ops, StageBatch* batch) {
  std::vector<int> ordered = ops;
  std::sort(ordered.begin(), ordered.end(),
            [&](int a, int b) { return graph.positions()[a] < graph.positions()[b]; });
  std::unordered_map<int, int> group_of;
  for (int op : ordered) group_of[op] = -1;
  std::vector<std::vector<int>> groups;
  for (int root : ordered) {
    if (group_of[root] >= 0) continue;
    const int group = static_cast<int>(groups.size());
    groups.emplace_back();
    std::vector<int> stack = {root};
    group_of[root] = group;
    while (!stack.empty()) {
      const int op = stack.back();
      stack.pop_back();
      for (const auto* neighbours : {&graph.predecessors(op), &graph.successors(op)}) {
        for (int next : *neighbours) {
          const auto found = group_of.find(next);
          if (found == group_of.end() || found->second >= 0) continue;
          found->second = group;
          stack.push_back(next);
        }
      }
    }
  }
  for (int op : ordered) groups[group_of[op]].push_back(op);
  for (const auto& group : groups) {
    batch->ops.insert(batch->ops.end(), group.begin(), group.end());
    batch->group_ends.push_back(static_cast<int64_t>(batch->ops.size()));
  }
  batch->stage_ends.push_back(static_cast<int64_t>(batch->group_ends.size()));
}

}  // namespace tvm_interop

#include "passes/graph/topological.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace tvm_interop {

std::vector<int> TopologicalOrder(const std::vector<std::vector<int>>& successors) {
  std::vector<int> waiting(successors.size());
  for (const auto& targets : successors) {
    for (int target : targets) ++waiting[target];
  }
  std::priority_queue<int, std::vector<int>, std::greater<int>> ready;
  for (size_t v = 0; v < successors.size(); ++v) {
    if (waiting[v] == 0) ready.push(static_cast<int>(v));
  }
  std::vector<int> order;
  order.reserve(successors.size());
  while (!ready.empty()) {
    const int v = ready.top();
    ready.pop();
    order.push_back(v);
    for (int target : successors[v]) {
      if (--waiting[target] == 0) ready.push(target);
    }
  }
  return order;
}

std::vector<int> FindCycle(const std::vector<std::vector<int>>& successors) {
  // Every vertex that TopologicalOrder leaves out has a predecessor that is left out too. So a walk
  // backwards along such predecessors must come back to a vertex that it has seen.
  std::vector<char> left(successors.size(), 1);
  for (int v : TopologicalOrder(successors)) left[v] = 0;
  std::vector<int> before(successors.size(), -1);
  int start = -1;
  for (size_t v = 0; v < successors.size(); ++v) {
    if (!left[v]) continue;
    start = static_cast<int>(v);
    for (int target : successors[v]) before[target] = static_cast<int>(v);
  }
  std::vector<char> seen(successors.size(), 0);
  while (!seen[start]) {
    seen[start] = 1;
    start = before[start];
  }
  std::vector<int> cycle = {start};
  for (int v = before[start]; v != start; v = before[v]) cycle.push_back(v);
  std::reverse(cycle.begin(), cycle.end());
  // The cycle starts at its lowest vertex, so that the same cycle always gives the same list.
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
  return cycle;
}

}  // namespace tvm_interop

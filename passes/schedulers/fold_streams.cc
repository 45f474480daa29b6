#include "passes/schedulers/fold_streams.h"

#include <algorithm>

#include "passes/schedulers/pack_groups.h"

namespace tvm_interop {

std::vector<std::vector<int>> FoldStreams(const std::vector<std::vector<int>>& streams,
                                          const std::vector<double>& op_us, int num_streams,
                                          const std::vector<int>& order) {
  std::vector<double> stream_us(streams.size());
  for (size_t s = 0; s < streams.size(); ++s) {
    for (int op : streams[s]) stream_us[s] += op_us[op];
  }
  const std::vector<int> folded_onto = PackGroups(stream_us, num_streams);
  if (static_cast<int>(streams.size()) <= num_streams) return streams;
  std::vector<int> stream_of(order.size());
  for (size_t s = 0; s < streams.size(); ++s) {
    for (int op : streams[s]) stream_of[op] = folded_onto[s];
  }
  std::vector<std::vector<int>> folded(num_streams);
  for (int op : order) folded[stream_of[op]].push_back(op);
  return folded;
}

std::vector<int> EarliestFirst(const OpGraph& graph, const std::vector<double>& op_us) {
  std::vector<double> start_us(graph.num_ops());
  for (int op : graph.topological_order()) {
    for (int next : graph.successors(op)) {
      start_us[next] = std::max(start_us[next], start_us[op] + op_us[op]);
    }
  }
  std::vector<int> order = graph.topological_order();
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return start_us[a] < start_us[b]; });
  return order;
}

}  // namespace tvm_interop

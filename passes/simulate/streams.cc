#include "passes/simulate/streams.h"

#include <algorithm>

#include "passes/graph/topological.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

double SimulateStreams(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                       const std::vector<double>& op_us) {
  ValidateStreams(graph, streams);
  std::vector<std::vector<int>> successors(graph.num_ops());
  for (int op = 0; op < graph.num_ops(); ++op) successors[op] = graph.successors(op);
  // An operator also waits for the operator before it on its stream. So add an edge between the
  // two.
  for (const auto& stream : streams) {
    for (size_t i = 1; i < stream.size(); ++i) successors[stream[i - 1]].push_back(stream[i]);
  }
  std::vector<double> start_us(graph.num_ops());
  double makespan = 0;
  for (int op : TopologicalOrder(successors)) {
    const double finish = start_us[op] + op_us[op];
    makespan = std::max(makespan, finish);
    for (int next : successors[op]) start_us[next] = std::max(start_us[next], finish);
  }
  return makespan;
}

}  // namespace tvm_interop

#include "passes/simulate/gpus.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tvm_interop {

Times SimulateGpus(const OpGraph& graph, const std::vector<Launch>& launches,
                   const std::vector<double>& edge_us, Links links) {
  std::vector<int> launch_of(graph.num_ops());
  for (size_t i = 0; i < launches.size(); ++i) {
    for (int op : launches[i].ops) launch_of[op] = static_cast<int>(i);
  }
  const auto device_of = [&](int op) { return launches[launch_of[op]].device; };
  std::vector<std::vector<std::pair<int, double>>> inputs(graph.num_ops());
  // For each operator, the transfer time to each GPU that reads its output.
  std::vector<std::map<int, double>> copies(graph.num_ops());
  for (size_t e = 0; e < edge_us.size(); ++e) {
    const auto& [from, to] = graph.edges()[e];
    if (launch_of[from] == launch_of[to]) continue;
    inputs[to].emplace_back(from, edge_us[e]);
    if (device_of(from) == device_of(to)) continue;
    double& us = copies[from][device_of(to)];
    us = std::max(us, edge_us[e]);
  }

  Times times = {std::vector<double>(launches.size()), std::vector<double>(launches.size())};
  std::map<int, double> free_us;  // the time at which each lane is free

  // The time at which each link is free, by source and target GPU.
  std::map<std::pair<int, int>, double> link_us;
  for (size_t i = 0; i < launches.size(); ++i) {
    const Launch& launch = launches[i];
    double start_us = free_us[launch.lane];
    for (int op : launch.ops) {
      for (const auto& [source, us] : inputs[op]) {
        double there_us = times.end_us[launch_of[source]];
        if (device_of(source) != launch.device) {
          // If links make one copy at a time (kFifo), `copies` holds the time at which each copy
          // arrives. This time was computed when the source of the copy ended.
          there_us = links == Links::kDelay ? there_us + us : copies[source][launch.device];
        }
        start_us = std::max(start_us, there_us);
      }
    }
    times.start_us[i] = start_us;
    times.end_us[i] = free_us[launch.lane] = start_us + launch.us;
    if (links == Links::kDelay) continue;
    for (int op : launch.ops) {
      for (auto& [target, us] : copies[op]) {
        double& link_free_us = link_us[{launch.device, target}];
        us = link_free_us = std::max(link_free_us, times.end_us[i]) + us;
      }
    }
  }
  return times;
}

}  // namespace tvm_interop

#include "passes/schedulers/opara.h"

#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>

namespace tvm_interop {
namespace {

std::vector<int> LaunchOrder(const OpGraph& graph, const std::vector<double>& demand,
                             const std::vector<char>& is_memory_bound) {
  using Ready = std::tuple<double, int, int>;  // The demand, the place in the list, the operator.
  std::priority_queue<Ready, std::vector<Ready>, std::greater<Ready>> memory, compute;
  int added = 0;
  const auto add = [&](int op) {
    (is_memory_bound[op] ? memory : compute).push({demand[op], added++, op});
  };
  std::vector<int> waits_for(graph.num_ops());
  for (int op = 0; op < graph.num_ops(); ++op) {
    waits_for[op] = static_cast<int>(graph.predecessors(op).size());
    if (waits_for[op] == 0) add(op);
  }
  std::vector<int> order;
  order.reserve(graph.num_ops());
  bool memory_next = true;
  while (!memory.empty() || !compute.empty()) {
    auto& chosen = compute.empty() || (memory_next && !memory.empty()) ? memory : compute;
    memory_next = &chosen == &compute;
    const int op = std::get<2>(chosen.top());
    chosen.pop();
    order.push_back(op);
    for (int next : graph.successors(op)) {
      if (--waits_for[next] == 0) add(next);
    }
  }
  return order;
}

}  // namespace

OparaSchedule ScheduleOpara(const OpGraph& graph, const std::vector<double>& demand,
                            const std::vector<char>& is_memory_bound) {
  OparaSchedule schedule;
  schedule.launch_order = LaunchOrder(graph, demand, is_memory_bound);
  std::vector<char> has_launched_successor(graph.num_ops());
  std::vector<size_t> stream_of(graph.num_ops());
  for (int op : schedule.launch_order) {
    size_t stream = schedule.streams.size();
    for (int source : graph.predecessors(op)) {
      if (!has_launched_successor[source] && stream == schedule.streams.size()) {
        stream = stream_of[source];
      }
      has_launched_successor[source] = 1;
    }
    if (stream == schedule.streams.size()) schedule.streams.emplace_back();
    stream_of[op] = stream;
    schedule.streams[stream].push_back(op);
  }
  return schedule;
}

}  // namespace tvm_interop

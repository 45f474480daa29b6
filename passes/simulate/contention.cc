#include "passes/simulate/contention.h"

#include <limits>

#include "passes/graph/stream_order.h"
#include "passes/simulate/shared_device.h"

namespace tvm_interop {

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
  SharedDevice device({contention.cores, contention.bandwidth});
  double now_us = 0;
  const auto start = [&](int op) {
    row_of[op] = schedule.timeline.size();
    schedule.timeline.push_back({op, places[op].stream, now_us, now_us});
    device.Start(op, contention.wait_us * static_cast<double>(waits[op].size()), op_us[op],
                 contention.op_cores[op], contention.memory_share[op]);
  };
  for (int op = 0; op < graph.num_ops(); ++op) {
    if (waits_for[op] == 0) start(op);
  }
  std::vector<int64_t> ended;
  while (!device.idle()) {
    ended.clear();
    now_us += device.Advance(std::numeric_limits<double>::infinity(), &ended);
    CheckSimulatedTime(now_us);
    for (int64_t op : ended) schedule.timeline[row_of[op]].finish_us = now_us;
    for (int64_t op : ended) {
      for (int next : successors[op]) {
        if (--waits_for[next] == 0) start(next);
      }
    }
  }
  schedule.makespan_us = now_us;
  return schedule;
}

}  // namespace tvm_interop

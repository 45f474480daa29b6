#include "passes/plan/sync_plan.h"

#include <algorithm>

#include "passes/graph/stream_order.h"
#include "passes/plan/vector_clock.h"

namespace tvm_interop {
namespace {

// Returns the last operator of `ops` on each stream, by ascending stream. An operator that needs
// all of `ops` must wait only for these operators, because a stream runs its operators in order.
std::vector<int> LastOfEachStream(std::vector<int> ops, const std::vector<StreamPlace>& places) {
  std::sort(ops.begin(), ops.end(), [&](int a, int b) {
    if (places[a].stream != places[b].stream) return places[a].stream < places[b].stream;
    return places[a].position > places[b].position;
  });
  ops.erase(std::unique(ops.begin(), ops.end(),
                        [&](int a, int b) { return places[a].stream == places[b].stream; }),
            ops.end());
  return ops;
}

}  // namespace

std::vector<std::vector<int>> PlanSync(const OpGraph& graph,
                                       const std::vector<std::vector<int>>& streams,
                                       const std::vector<Edge>& extra_edges) {
  const std::vector<StreamPlace> places = StreamPlaces(graph, streams);
  std::vector<Edge> edges = graph.edges();
  edges.insert(edges.end(), extra_edges.begin(), extra_edges.end());
  const std::vector<int> order = OrderOrThrow(graph, OrderSuccessors(graph, streams, edges));

  std::vector<std::vector<int>> needed(graph.num_ops());
  for (const auto& [from, to] : edges) {
    if (places[from].stream != places[to].stream) needed[to].push_back(from);
  }

  VectorClocks clocks(graph.num_ops(), streams.size());
  std::vector<std::vector<int>> waits(graph.num_ops());
  for (int op : order) {
    const auto [stream, position] = places[op];
    const std::vector<int> candidates = LastOfEachStream(needed[op], places);
    const auto is_behind = [&](int source, int other) {
      return clocks.of(other)[places[source].stream] >
             static_cast<uint32_t>(places[source].position);
    };
    const int previous = position > 0 ? streams[stream][position - 1] : -1;
    if (previous >= 0) clocks.Join(op, previous);
    for (int source : candidates) {
      // A wait for `source` is redundant if `op` also runs after another operator that starts only
      // after `source` has ended.
      bool covered = previous >= 0 && is_behind(source, previous);
      for (size_t i = 0; i < candidates.size() && !covered; ++i) {
        covered = candidates[i] != source && is_behind(source, candidates[i]);
      }
      if (covered) continue;
      waits[op].push_back(source);
    }
    for (int source : waits[op]) clocks.Join(op, source);
    clocks.of(op)[stream] = static_cast<uint32_t>(position) + 1;
  }
  return waits;
}

}  // namespace tvm_interop

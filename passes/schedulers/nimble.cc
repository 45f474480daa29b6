#include "passes/schedulers/nimble.h"

#include <algorithm>
#include <utility>

#include "passes/graph/matching.h"
#include "passes/graph/transitive_reduction.h"

namespace tvm_interop {
namespace {

struct VertexCover {
  std::vector<char> left, right;
};

// A minimum vertex cover of the bipartite graph of `edges` (Koenig). It follows alternating paths
// from the free left vertices. The cover holds the left vertices that no such path reaches and the
// right vertices that some such path reaches.
VertexCover LeastCover(const std::vector<std::vector<int>>& edges,
                       const std::vector<int>& matching) {
  VertexCover cover = {std::vector<char>(edges.size(), 1), std::vector<char>(edges.size(), 0)};
  std::vector<int> left_of(edges.size(), -1);
  std::vector<int> open;
  for (size_t u = 0; u < edges.size(); ++u) {
    if (matching[u] >= 0) {
      left_of[matching[u]] = static_cast<int>(u);
    } else {
      cover.left[u] = 0;
      open.push_back(static_cast<int>(u));
    }
  }
  while (!open.empty()) {
    const int u = open.back();
    open.pop_back();
    for (int v : edges[u]) {
      if (cover.right[v]) continue;
      cover.right[v] = 1;
      // The vertex v has a partner. If it had none, the alternating path to v would make the
      // matching larger, but the matching is maximum.
      cover.left[left_of[v]] = 0;
      open.push_back(left_of[v]);
    }
  }
  return cover;
}

// Returns the tight edges of the transitive closure (`nimble.h` defines them). `reduced` has the
// edges of the minimum equivalent graph.
std::vector<BitSet> TightEdges(const OpGraph& graph, const std::vector<std::vector<int>>& reduced,
                               const VertexCover& cover) {
  BitSet uncovered = EmptyBitSet(graph.num_ops());
  for (int v = 0; v < graph.num_ops(); ++v) {
    if (!cover.right[v]) uncovered.Set(v);
  }
  std::vector<BitSet> tight(graph.num_ops(), EmptyBitSet(graph.num_ops()));
  for (int u = 0; u < graph.num_ops(); ++u) {
    if (!cover.left[u]) tight[u] = graph.descendants(u) & uncovered;
    for (int v : reduced[u]) {
      if (cover.left[u] != cover.right[v]) tight[u].Set(v);
    }
  }
  return tight;
}

std::vector<std::vector<int>> FollowChains(const OpGraph& graph, const std::vector<int>& next) {
  std::vector<char> has_previous(next.size());
  for (int op : next) {
    if (op >= 0) has_previous[op] = 1;
  }
  std::vector<std::vector<int>> chains;
  for (int first : graph.topological_order()) {
    if (has_previous[first]) continue;
    chains.emplace_back();
    for (int op = first; op >= 0; op = next[op]) chains.back().push_back(op);
  }
  return chains;
}

}  // namespace

NimbleSchedule ScheduleNimble(const OpGraph& graph) {
  const std::vector<std::vector<int>> reduced = TransitiveReduction(graph);
  const std::vector<int> matching = MaximumMatching(reduced, graph.num_ops());
  NimbleSchedule schedule;
  for (int op = 0; op < graph.num_ops(); ++op) {
    schedule.reduced_edges += static_cast<int64_t>(reduced[op].size());
    schedule.matching += matching[op] >= 0;
  }
  schedule.chains = graph.num_ops() - schedule.matching;
  const VertexCover cover = LeastCover(reduced, matching);
  const std::vector<int> next =
      GrowMatching(TightEdges(graph, reduced, cover), graph.num_ops(), matching);
  schedule.streams = FollowChains(graph, next);
  return schedule;
}

}  // namespace tvm_interop

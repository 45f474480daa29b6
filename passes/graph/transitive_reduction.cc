#include "passes/graph/transitive_reduction.h"

#include <algorithm>

namespace tvm_interop {

std::vector<std::vector<int>> TransitiveReduction(const OpGraph& graph) {
  const std::vector<int>& position = graph.positions();
  std::vector<std::vector<int>> reduced(graph.num_ops());
  BitSet reached = EmptyBitSet(graph.num_ops());
  for (int op = 0; op < graph.num_ops(); ++op) {
    reduced[op] = graph.successors(op);
    if (reduced[op].size() < 2) continue;
    // A successor can reach only those successors that come later in the topological order.
    std::sort(reduced[op].begin(), reduced[op].end(),
              [&](int a, int b) { return position[a] < position[b]; });
    reached = graph.descendants(reduced[op].front());
    const auto is_replaced = [&](int next) {
      if (reached.Test(next)) return true;
      reached |= graph.descendants(next);
      return false;
    };
    reduced[op].erase(std::remove_if(reduced[op].begin() + 1, reduced[op].end(), is_replaced),
                      reduced[op].end());
  }
  return reduced;
}

}  // namespace tvm_interop

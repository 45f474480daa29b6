#include "passes/blocks.h"

#include <algorithm>
#include <utility>

namespace tvm_interop {
namespace {

// For each position in topological order, the last position that the operator there does not
// reach: itself, if it reaches all that come after.
std::vector<int> LastUnreached(const OpGraph& graph) {
  const int n = graph.num_ops();
  const std::vector<int>& order = graph.topological_order();
  std::vector<int> last(n);
  // Descendants as positions, because their order is what matters here.
  std::vector<BitSet> reached(n, EmptyBitSet(n));
  for (int i = n - 1; i >= 0; --i) {
    for (int next : graph.successors(order[i])) {
      const int j = graph.positions()[next];
      reached[i] |= reached[j];
      reached[i].Set(j);
    }
    last[i] = n - 1;
    while (last[i] > i && reached[i].Test(last[i])) --last[i];
  }
  return last;
}

}  // namespace

std::vector<std::vector<int>> FindBlocks(const OpGraph& graph) {
  // Whatever lies before a cut comes before it in any topological order, so each cut is a prefix of
  // this one: a prefix whose members all reach everything behind it.
  const std::vector<int> last = LastUnreached(graph);
  std::vector<std::vector<int>> blocks;
  std::vector<int> component;
  bool previous_has_no_exit = false;
  int unreached = -1;
  for (int i = 0; i < graph.num_ops(); ++i) {
    component.push_back(graph.topological_order()[i]);
    unreached = std::max(unreached, last[i]);
    if (unreached > i) continue;
    if (component.size() == 1 && previous_has_no_exit) {
      blocks.back().push_back(component.front());
      previous_has_no_exit = false;
    } else {
      previous_has_no_exit = component.size() > 1;
      blocks.push_back(std::move(component));
    }
    component.clear();
  }
  return blocks;
}

}  // namespace tvm_interop

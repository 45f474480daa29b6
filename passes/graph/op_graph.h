#ifndef PASSES_GRAPH_OP_GRAPH_H_
#define PASSES_GRAPH_OP_GRAPH_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "passes/graph/bit_set.h"

namespace tvm_interop {

using Edge = std::pair<int, int>;

// The operators of a model and who reads whose output. Immutable. Ids are the caller's own, in any
// order; every algorithm that needs an order takes `topological_order`.
class OpGraph {
 public:
  // Throws GraphError on an empty or repeated name, an edge to an id that is none, an edge from an
  // operator to itself, and a cycle (naming the operators on one).
  OpGraph(std::vector<std::string> names, std::vector<Edge> edges);

  int num_ops() const { return static_cast<int>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& name(int op) const { return names_[op]; }
  // As given: an operator that reads another's output twice has two edges from it.
  const std::vector<Edge>& edges() const { return edges_; }
  // Each neighbour once, ascending.
  const std::vector<int>& predecessors(int op) const { return predecessors_[op]; }
  const std::vector<int>& successors(int op) const { return successors_[op]; }

  // Of the operators that are ready, the lowest id first.
  const std::vector<int>& topological_order() const { return order_; }
  // Where each operator stands in `topological_order`.
  const std::vector<int>& positions() const { return positions_; }

  // The operators that a path of at least one edge leads to, or comes from. All the sets of one
  // direction are computed at the first call: n * n / 8 bytes.
  const BitSet& descendants(int op) const;
  const BitSet& ancestors(int op) const;
  // Whether a path of at least one edge leads from `from` to `to`.
  bool Reaches(int from, int to) const { return descendants(from).Test(to); }

  // The most operators of which none reaches another (Dilworth: operators less the maximum
  // matching of the transitive closure).
  int Width() const;

 private:
  struct Closure {
    std::once_flag down_once, up_once, width_once;
    std::vector<BitSet> descendants, ancestors;
    int width = 0;
  };

  std::vector<std::string> names_;
  std::vector<Edge> edges_;
  std::vector<std::vector<int>> predecessors_, successors_;
  std::vector<int> order_, positions_;
  // Behind a pointer so that a graph can be moved; once_flags so that threads can share it.
  std::unique_ptr<Closure> closure_;
};

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_OP_GRAPH_H_

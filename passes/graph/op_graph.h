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

// The graph of a model's operators. An edge leads from an operator to a reader of its output. A
// graph is immutable. Operator ids need not be in topological order; an algorithm that needs an
// order takes `topological_order`.
class OpGraph {
 public:
  // Throws GraphError for an empty or repeated name, an edge to or from an unknown operator, an
  // edge from an operator to itself, and a cycle. If there is a cycle, the message names the
  // operators on a cycle.
  OpGraph(std::vector<std::string> names, std::vector<Edge> edges);

  int num_ops() const { return static_cast<int>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& name(int op) const { return names_[op]; }
  // The edges as given. If an operator reads the output of another operator twice, there are two
  // edges between the two operators.
  const std::vector<Edge>& edges() const { return edges_; }
  // The operators that an operator reads, and the operators that read its output. Each is listed
  // once, in ascending order.
  const std::vector<int>& predecessors(int op) const { return predecessors_[op]; }
  const std::vector<int>& successors(int op) const { return successors_[op]; }

  // A topological order. Among the operators that are ready, the lowest id comes first.
  const std::vector<int>& topological_order() const { return order_; }
  // The position of each operator in `topological_order`.
  const std::vector<int>& positions() const { return positions_; }

  // `descendants` are the operators that can be reached from `op` by one or more edges. `ancestors`
  // are the operators from which `op` can be reached by one or more edges. At its first call, each
  // function computes the sets for all operators, which take n * n / 8 bytes.
  const BitSet& descendants(int op) const;
  const BitSet& ancestors(int op) const;
  // Whether a path of at least one edge leads from `from` to `to`.
  bool Reaches(int from, int to) const { return descendants(from).Test(to); }

  // The largest number of operators such that no path connects any two of them. By Dilworth's
  // theorem it is the number of operators minus the size of a maximum matching of the transitive
  // closure.
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
  // The once_flags allow several threads to use one graph. They are stored behind a pointer with
  // the closure, because a graph can be moved, but a once_flag cannot.
  std::unique_ptr<Closure> closure_;
};

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_OP_GRAPH_H_

#ifndef PASSES_SCHEDULERS_GPU_COSTS_H_
#define PASSES_SCHEDULERS_GPU_COSTS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// A neighbour of an operator in the graph, and the transfer time of the edge between the two. The
// transfer takes place only if the two operators are on different GPUs.
struct Arc {
  int rank;
  double us;
};

class ArcRange {
 public:
  ArcRange(const Arc* begin, const Arc* end) : begin_(begin), end_(end) {}
  const Arc* begin() const { return begin_; }
  const Arc* end() const { return end_; }

 private:
  const Arc *begin_, *end_;
};

// The latencies of operators and of copies between GPUs. Operators are renumbered by priority, and
// an operator's new number is its rank.
//
// The priority of an operator is the length of the longest path from its start to the end of the
// graph. The length is the sum of the latencies of the operators on the path and of a copy for
// every edge (HIOS, section IV-A). Rank 0 has the highest priority. Ties go to the earlier operator
// in topological order, so every edge leads to a higher rank.
class GpuCosts {
 public:
  // `op_us` holds the latency of each operator, and `edge_us` holds the transfer time of each edge
  // of `graph.edges()`. If an edge is repeated, its largest value counts. Throws ScheduleError if a
  // list has the wrong length. Also throws ScheduleError, naming the operators, for a value that is
  // negative or not finite.
  GpuCosts(const OpGraph& graph, const std::vector<double>& op_us,
           const std::vector<double>& edge_us);

  const OpGraph& graph() const { return graph_; }
  int num_ops() const { return static_cast<int>(op_of_.size()); }
  int op(int rank) const { return op_of_[rank]; }
  int rank(int op) const { return rank_of_[op]; }
  double us(int rank) const { return us_[rank]; }
  // The operator's position in the graph's topological order. If two operators are tied, the
  // operator with the lower position comes first.
  int position(int rank) const { return graph_.positions()[op_of_[rank]]; }
  ArcRange sources(int rank) const { return Range(sources_, rank); }
  ArcRange readers(int rank) const { return Range(readers_, rank); }

 private:
  struct Arcs {
    // The index in `arcs` at which each rank begins, followed by the size of `arcs`.
    std::vector<int> begins;
    std::vector<Arc> arcs;
  };
  static ArcRange Range(const Arcs& arcs, int rank) {
    return {arcs.arcs.data() + arcs.begins[rank], arcs.arcs.data() + arcs.begins[rank + 1]};
  }

  const OpGraph& graph_;
  std::vector<int> op_of_, rank_of_;
  std::vector<double> us_;
  Arcs sources_, readers_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_GPU_COSTS_H_

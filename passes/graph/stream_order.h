#ifndef PASSES_GRAPH_STREAM_ORDER_H_
#define PASSES_GRAPH_STREAM_ORDER_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// The place where an operator runs: its stream and its position on the stream.
struct StreamPlace {
  int stream = -1;
  int position = -1;
};

// The place of each operator. Throws PlanError for an operator on no stream or on more than one,
// and for an unknown operator.
std::vector<StreamPlace> StreamPlaces(const OpGraph& graph,
                                      const std::vector<std::vector<int>>& streams);

// For each operator, the operators that must run after it: the next operator on its stream, and the
// targets of its edges in `edges`. An operator may be listed more than once. Throws PlanError for
// an edge with an unknown operator.
std::vector<std::vector<int>> OrderSuccessors(const OpGraph& graph,
                                              const std::vector<std::vector<int>>& streams,
                                              const std::vector<Edge>& edges);

// A topological order of the operators, given the successors of each. If there is none, throws
// PlanError, which names operators that wait for each other in a circle.
std::vector<int> OrderOrThrow(const OpGraph& graph,
                              const std::vector<std::vector<int>>& successors);

// For each operator `op`, the edges from the operators in `waits[op]` to `op`.
std::vector<Edge> WaitEdges(const OpGraph& graph, const std::vector<std::vector<int>>& waits);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_STREAM_ORDER_H_

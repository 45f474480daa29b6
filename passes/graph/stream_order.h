#ifndef PASSES_GRAPH_STREAM_ORDER_H_
#define PASSES_GRAPH_STREAM_ORDER_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// Where an operator runs: its stream, and its position there.
struct StreamPlace {
  int stream = -1;
  int position = -1;
};

// The place of each operator. Throws PlanError when one is not on exactly one stream.
std::vector<StreamPlace> StreamPlaces(const OpGraph& graph,
                                      const std::vector<std::vector<int>>& streams);

// For each operator, those that it points to in the streams' order or in `edges`, repeats kept.
// Throws PlanError for an edge to an operator that is none.
std::vector<std::vector<int>> OrderSuccessors(const OpGraph& graph,
                                              const std::vector<std::vector<int>>& streams,
                                              const std::vector<Edge>& edges);

// A topological order of such successors; throws PlanError, naming operators that wait for each
// other in a circle, where there is none.
std::vector<int> OrderOrThrow(const OpGraph& graph,
                              const std::vector<std::vector<int>>& successors);

// The edges from each operator in `waits[op]` to op.
std::vector<Edge> WaitEdges(const OpGraph& graph, const std::vector<std::vector<int>>& waits);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_STREAM_ORDER_H_

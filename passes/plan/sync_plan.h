#ifndef PASSES_PLAN_SYNC_PLAN_H_
#define PASSES_PLAN_SYNC_PLAN_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// For each operator, the operators on other streams that it must wait for, by ascending stream.
// Consider the graph whose edges are the dependencies, `extra_edges`, and the steps from each
// operator to the next one on its stream. The waits are the edges between streams in the transitive
// reduction of this graph. No smaller set of waits gives the same order. Uses vector clocks and
// takes O(operators * streams + edges * streams). Throws PlanError for streams that cannot be run.
std::vector<std::vector<int>> PlanSync(const OpGraph& graph,
                                       const std::vector<std::vector<int>>& streams,
                                       const std::vector<Edge>& extra_edges);

}  // namespace tvm_interop

#endif  // PASSES_PLAN_SYNC_PLAN_H_

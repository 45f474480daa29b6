#ifndef PASSES_GRAPH_TRANSITIVE_REDUCTION_H_
#define PASSES_GRAPH_TRANSITIVE_REDUCTION_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// The transitive reduction of the graph. It drops each edge whose ends are also connected by a
// longer path. Returns the remaining successors of each operator, in topological order and without
// repeats. An acyclic graph has exactly one such reduction, and it is the minimum equivalent graph.
// Takes O(edges * n / 64) after the closure.
std::vector<std::vector<int>> TransitiveReduction(const OpGraph& graph);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_TRANSITIVE_REDUCTION_H_

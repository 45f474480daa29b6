#ifndef PASSES_GRAPH_TRANSITIVE_REDUCTION_H_
#define PASSES_GRAPH_TRANSITIVE_REDUCTION_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// The edges of the graph that no longer path replaces, each once: for each operator its successors,
// in topological order. Of an acyclic graph these are its minimum equivalent graph, and there is
// only one. O(edges * n / 64) after the closure.
std::vector<std::vector<int>> TransitiveReduction(const OpGraph& graph);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_TRANSITIVE_REDUCTION_H_

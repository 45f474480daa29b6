#ifndef PASSES_GRAPH_BLOCKS_H_
#define PASSES_GRAPH_BLOCKS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// The blocks that IOS searches one by one. Every operator is in exactly one block. The blocks are
// in topological order, and so are the operators of each block.
//
// A cut divides the graph in two halves such that every operator before the cut reaches every
// operator after it. The operators between two neighbouring cuts form a component. If a component
// of one operator follows a component of several operators, the single operator is the exit of the
// larger component. An example is the concat of an Inception module. The exit joins the larger
// component. Any other component is a block of its own. Takes O(n + edges).
std::vector<std::vector<int>> FindBlocks(const OpGraph& graph);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_BLOCKS_H_

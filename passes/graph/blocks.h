#ifndef PASSES_GRAPH_BLOCKS_H_
#define PASSES_GRAPH_BLOCKS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// The blocks that IOS searches one by one: operators in topological order, blocks in order, every
// operator in exactly one.
//
// A cut lies between two halves of the graph when every operator before it reaches every one after
// it; the components between neighbouring cuts are the finest series decomposition. A component of
// one operator right behind a component of several is their exit (the concat of an Inception
// module) and joins it; any other component is a block of its own. O(n + edges).
std::vector<std::vector<int>> FindBlocks(const OpGraph& graph);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_BLOCKS_H_

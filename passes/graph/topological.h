#ifndef PASSES_GRAPH_TOPOLOGICAL_H_
#define PASSES_GRAPH_TOPOLOGICAL_H_

#include <vector>

namespace tvm_interop {

// The vertices in an order in which every edge goes forward. Among the vertices that are ready, the
// lowest comes first. Vertices on a cycle are left out, and so are vertices that can be reached
// from a cycle. If the graph has cycles, the result is therefore shorter than `successors`.
std::vector<int> TopologicalOrder(const std::vector<std::vector<int>>& successors);

// The vertices of one cycle, in the order of its edges. The graph must have a cycle.
std::vector<int> FindCycle(const std::vector<std::vector<int>>& successors);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_TOPOLOGICAL_H_

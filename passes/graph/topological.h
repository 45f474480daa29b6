#ifndef PASSES_GRAPH_TOPOLOGICAL_H_
#define PASSES_GRAPH_TOPOLOGICAL_H_

#include <vector>

namespace tvm_interop {

// Vertices ordered so that every edge goes forward; of those that are ready the lowest first.
// Vertices on a cycle, or behind one, are left out: the result is then shorter than `successors`.
std::vector<int> TopologicalOrder(const std::vector<std::vector<int>>& successors);

// The vertices of one cycle, in order. There must be one.
std::vector<int> FindCycle(const std::vector<std::vector<int>>& successors);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_TOPOLOGICAL_H_

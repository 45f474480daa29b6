#ifndef PASSES_GRAPH_MATCHING_H_
#define PASSES_GRAPH_MATCHING_H_

#include <vector>

#include "passes/graph/bit_set.h"

namespace tvm_interop {

// Maximum matchings of bipartite graphs (Hopcroft and Karp 1973). Each function returns the right
// partner of every left vertex, or -1 for a left vertex without a partner.

// Finds a maximum matching of a graph with many edges. `adjacency[u]` holds the right neighbours of
// u, as a set of `num_right` bits. A phase takes O(left * right / 64) for any number of edges.
std::vector<int> MaximumMatching(const std::vector<BitSet>& adjacency, int num_right);

// Finds a maximum matching that starts from `matching`. A vertex that is matched in `matching`
// stays matched, but its partner may change.
std::vector<int> GrowMatching(const std::vector<BitSet>& adjacency, int num_right,
                              std::vector<int> matching);

// Finds a maximum matching of a graph with few edges. `adjacency[u]` lists the right neighbours of
// u. Takes O(edges * sqrt(vertices)).
std::vector<int> MaximumMatching(const std::vector<std::vector<int>>& adjacency, int num_right);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_MATCHING_H_

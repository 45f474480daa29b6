#ifndef PASSES_GRAPH_MATCHING_H_
#define PASSES_GRAPH_MATCHING_H_

#include <vector>

#include "passes/graph/bit_set.h"

namespace tvm_interop {

// Maximum matchings of bipartite graphs (Hopcroft and Karp 1973): for each left vertex its right
// partner, or -1.

// For many edges: `adjacency[u]` holds the right neighbours of u, each set of `num_right` bits. A
// phase costs O(left * right / 64), however many edges there are.
std::vector<int> MaximumMatching(const std::vector<BitSet>& adjacency, int num_right);

// The same, grown out of `matching`: what is matched there stays matched, if not to the same.
std::vector<int> GrowMatching(const std::vector<BitSet>& adjacency, int num_right,
                              std::vector<int> matching);

// For few edges: O(edges * sqrt(vertices)).
std::vector<int> MaximumMatching(const std::vector<std::vector<int>>& adjacency, int num_right);

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_MATCHING_H_

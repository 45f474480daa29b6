#ifndef PASSES_MATCHING_H_
#define PASSES_MATCHING_H_

#include <vector>

#include "passes/bit_set.h"

namespace tvm_interop {

// A maximum matching of a bipartite graph (Hopcroft and Karp 1973): for each left vertex its right
// partner, or -1. `adjacency[u]` holds the right neighbours of u, each set of `num_right` bits.
// On bit sets a phase costs O(left * right / 64), however many edges there are.
std::vector<int> MaximumMatching(const std::vector<BitSet>& adjacency, int num_right);

}  // namespace tvm_interop

#endif  // PASSES_MATCHING_H_

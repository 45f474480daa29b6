#ifndef PASSES_SCHEDULERS_PART_SETS_H_
#define PASSES_SCHEDULERS_PART_SETS_H_

#include <cstddef>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "passes/graph/bit_set.h"
#include "passes/graph/op_graph.h"

namespace tvm_interop {

template <typename Set>
Set MakeEmpty(size_t size) {
  if constexpr (std::is_same_v<Set, BitSet>) {
    return EmptyBitSet(static_cast<int>(size));
  } else {
    return Set();
  }
}

// For each operator in `ops`, the operator itself and the operators in `ops` that it reaches.
// Operators are given as positions in `ops`. `ops` must be in topological order, and every operator
// on a path between two of them must be in `ops` too.
template <typename Set>
std::vector<Set> PartUpSets(const OpGraph& graph, const std::vector<int>& ops) {
  std::unordered_map<int, int> local;
  for (size_t i = 0; i < ops.size(); ++i) local[ops[i]] = static_cast<int>(i);
  std::vector<Set> up(ops.size(), MakeEmpty<Set>(ops.size()));
  for (size_t i = ops.size(); i-- > 0;) {
    up[i].Set(static_cast<int>(i));
    for (int next : graph.successors(ops[i])) {
      const auto found = local.find(next);
      if (found != local.end()) up[i] |= up[found->second];
    }
  }
  return up;
}

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_PART_SETS_H_

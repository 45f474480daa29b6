#ifndef PASSES_SCHEDULERS_OPARA_H_
#define PASSES_SCHEDULERS_OPARA_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

struct OparaSchedule {
  std::vector<std::vector<int>> streams;
  std::vector<int> launch_order;
};

// Opara (Chen et al. 2023).
//
// The launch order is found first (Algorithm 2). Among the operators that are ready, Opara takes a
// memory-bound and a compute-bound operator in turn, beginning with a memory-bound operator. If no
// operator of one kind is ready, it takes an operator of the other kind. Within a kind, the
// operator of least `demand` comes first. Ties go to the operator that has been ready for longest.
// The paper appends ready operators to a list, and takes the first operator of least demand from
// it. Operators that became ready together are in the list by ascending id.
//
// Then the operators are put onto streams in launch order (Algorithm 1). An operator goes to the
// stream of a predecessor if no other reader of this predecessor is launched before the operator.
// If there are several such predecessors, the predecessor with the lowest id is taken. If there is
// none, the operator opens a new stream.
//
// Takes O(n log n + edges).
//
// The paper allocates streams along any topological order, and does not say which successor of an
// operator comes first. The paper's code finds the launch order first, and allocates streams along
// this order. This function does the same.
OparaSchedule ScheduleOpara(const OpGraph& graph, const std::vector<double>& demand,
                            const std::vector<char>& is_memory_bound);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_OPARA_H_

#ifndef PASSES_SCHEDULERS_OPARA_H_
#define PASSES_SCHEDULERS_OPARA_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

struct OparaSchedule {
  std::vector<std::vector<int>> streams;
  std::vector<int> launch_order;
};

// Opara (Chen et al. 2023). The launch order first (Algorithm 2): of the operators that are ready,
// alternately a memory-bound and a compute-bound one, memory-bound first, and of the other kind
// where one kind has run out; always the one of least `demand`, ties to the lowest id. Then the
// streams along that order (Algorithm 1): an operator goes on with the stream of the first of its
// predecessors, by ascending id, that has launched no other successor before; otherwise it opens a
// stream. O(n log n + edges).
//
// The paper allocates along any topological order and does not say which successor is the first;
// its code launches first and allocates along the launches, and so do we.
OparaSchedule ScheduleOpara(const OpGraph& graph, const std::vector<double>& demand,
                            const std::vector<char>& is_memory_bound);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_OPARA_H_

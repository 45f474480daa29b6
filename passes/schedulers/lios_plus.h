#ifndef PASSES_SCHEDULERS_LIOS_PLUS_H_
#define PASSES_SCHEDULERS_LIOS_PLUS_H_

#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

// LIOS with two changes, neither of which is in its paper. The priority of an operator is the
// longest path from it to the end, its own latency included, instead of that latency alone. And an
// operator starts `wait_us` later for each other stream that holds an operator it reads, so that
// work spreads only where that pays; whether the sync plan will drop such a wait because another
// covers it is not looked at. Nothing is inserted into gaps. Ties as ScheduleLios.
// O(n log n + edges * log streams).
Schedule ScheduleLiosPlus(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                          double wait_us);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_LIOS_PLUS_H_

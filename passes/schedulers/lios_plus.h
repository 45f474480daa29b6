#ifndef PASSES_SCHEDULERS_LIOS_PLUS_H_
#define PASSES_SCHEDULERS_LIOS_PLUS_H_

#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

// LIOS with two changes that are not in its paper. First, the priority of an operator is the length
// of the longest path from it to the end, including its own latency. LIOS uses only the latency of
// the operator itself. Second, an operator starts `wait_us` later for each other stream that holds
// an operator it reads. So operators spread over streams only where this gains more time than the
// waits cost. The scheduler counts the cost of every wait, even of a wait that the plan leaves out
// because another wait makes it unnecessary. The scheduler inserts no operator into a gap. Ties are
// as in ScheduleLios. Takes O(n log n + edges * log streams).
Schedule ScheduleLiosPlus(const OpGraph& graph, const std::vector<double>& op_us, int num_streams,
                          double wait_us);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_LIOS_PLUS_H_

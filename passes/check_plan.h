#ifndef PASSES_CHECK_PLAN_H_
#define PASSES_CHECK_PLAN_H_

#include <cstdint>
#include <vector>

#include "passes/memory_plan.h"
#include "passes/op_graph.h"

namespace tvm_interop {

// Checkers of the planners' work, written apart from them: they know happens-before only as plain
// reachability over the streams' order and the waits, one search per operator, and share none of
// the vector clocks. Slower, and meant to be.

// Throws PlanError, naming both operators, when a dependency (or an extra edge) is not ordered by
// the streams and the waits, and when operators wait for each other in a circle.
void CheckSync(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
               const std::vector<std::vector<int>>& waits, const std::vector<Edge>& extra_edges);

// Throws PlanError, naming the producers of both buffers, when two share bytes although neither is
// done with before the other is written; also for a buffer outside the arena or off its alignment.
void CheckMemory(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                 const std::vector<std::vector<int>>& waits, const std::vector<Buffer>& buffers,
                 int64_t alignment, const MemoryPlan& plan);

}  // namespace tvm_interop

#endif  // PASSES_CHECK_PLAN_H_

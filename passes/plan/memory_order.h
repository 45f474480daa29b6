#ifndef PASSES_PLAN_MEMORY_ORDER_H_
#define PASSES_PLAN_MEMORY_ORDER_H_

#include <cstdint>
#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/plan/memory_plan.h"

namespace tvm_interop {

// An order of all operators, on one stream, that keeps the bytes in use at once low: of the
// operators that are ready, again and again the one that adds least to them, what it frees taken
// off; ties by lowest id. Greedy, so not the least there is (finding that is NP-hard); where the
// topological order needs less, it is that. Throws PlanError for a buffer that is malformed.
std::vector<int> MemoryOrder(const OpGraph& graph, const std::vector<Buffer>& buffers);

// The most bytes in use at once when the operators run in this order. A buffer is in use from the
// start of its producer to the end of its last user, or of its producer where there is none.
int64_t PeakBytes(const std::vector<int>& order, const std::vector<Buffer>& buffers);

}  // namespace tvm_interop

#endif  // PASSES_PLAN_MEMORY_ORDER_H_

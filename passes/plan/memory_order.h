#ifndef PASSES_PLAN_MEMORY_ORDER_H_
#define PASSES_PLAN_MEMORY_ORDER_H_

#include <cstdint>
#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/plan/memory_plan.h"

namespace tvm_interop {

// An order of all operators on one stream that keeps the bytes in use at once low. The order is
// greedy. The next operator is the ready operator that adds fewest bytes to the bytes in use. Bytes
// that an operator frees count as negative. Ties go to the lowest id. The result is not always the
// best order, which is NP-hard to find. If the topological order needs fewer bytes, it is returned
// instead. Throws PlanError for a malformed buffer.
std::vector<int> MemoryOrder(const OpGraph& graph, const std::vector<Buffer>& buffers);

// The most bytes in use at once when the operators run in this order. A buffer is in use from the
// start of the first operator that writes or reads it to the end of the last such operator.
int64_t PeakBytes(const std::vector<int>& order, const std::vector<Buffer>& buffers);

}  // namespace tvm_interop

#endif  // PASSES_PLAN_MEMORY_ORDER_H_

#ifndef PASSES_SCHEDULERS_LIOS_H_
#define PASSES_SCHEDULERS_LIOS_H_

#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

// LIOS, latency-based list scheduling (section IV, Algorithm 1). Among the operators that are
// ready, it takes the operator with the longest latency. Ties go to the operator that has waited
// longest; operators that become ready together arrive by ascending id. LIOS puts the operator on
// the stream where it finishes first, with ties to the lowest stream. Streams that stay empty are
// left out. Takes O(n log n + edges).
Schedule ScheduleLios(const OpGraph& graph, const std::vector<double>& op_us, int num_streams);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_LIOS_H_

#ifndef PASSES_SIMULATE_STREAMS_H_
#define PASSES_SIMULATE_STREAMS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// The makespan of the streams, in microseconds. Each operator takes its `op_us`. It starts as soon
// as its stream is free and the operators it reads have finished. Throws ScheduleError as
// ValidateStreams does.
double SimulateStreams(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                       const std::vector<double>& op_us);

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_STREAMS_H_

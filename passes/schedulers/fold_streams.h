#ifndef PASSES_SCHEDULERS_FOLD_STREAMS_H_
#define PASSES_SCHEDULERS_FOLD_STREAMS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// Lays streams onto at most `num_streams`: whole streams, the one with the most `op_us` first onto
// the least loaded (PackGroups; ties: lowest). Where several share one, their operators run in
// `order`, which must be a topological order of the graph. Streams that already fit stay as they
// are.
std::vector<std::vector<int>> FoldStreams(const std::vector<std::vector<int>>& streams,
                                          const std::vector<double>& op_us, int num_streams,
                                          const std::vector<int>& order);

// The operators by the time at which each could start if there were no lack of streams; ties in
// topological order. A topological order itself.
std::vector<int> EarliestFirst(const OpGraph& graph, const std::vector<double>& op_us);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_FOLD_STREAMS_H_

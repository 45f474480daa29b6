#ifndef PASSES_SCHEDULERS_FOLD_STREAMS_H_
#define PASSES_SCHEDULERS_FOLD_STREAMS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// Combines `streams` into at most `num_streams` new streams. The operators of a stream stay
// together. The streams are placed by descending sum of `op_us`, each onto the new stream with the
// smallest sum so far (PackGroups). Ties go to the lowest stream. If several streams share a new
// stream, their operators run in `order`, which must be a topological order of the graph. If there
// are at most `num_streams` streams, they are returned unchanged.
std::vector<std::vector<int>> FoldStreams(const std::vector<std::vector<int>>& streams,
                                          const std::vector<double>& op_us, int num_streams,
                                          const std::vector<int>& order);

// The operators sorted by their earliest start times. The earliest start time of an operator
// assumes that a stream is always free. Operators with equal times are in topological order. So the
// result is a topological order too.
std::vector<int> EarliestFirst(const OpGraph& graph, const std::vector<double>& op_us);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_FOLD_STREAMS_H_

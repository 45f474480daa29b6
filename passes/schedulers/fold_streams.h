#ifndef PASSES_SCHEDULERS_FOLD_STREAMS_H_
#define PASSES_SCHEDULERS_FOLD_STREAMS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// Folds streams onto at most `num_streams` streams. Each stream stays whole. The stream with the
// most `op_us` goes first, onto the least loaded one (PackGroups; ties go to the lowest). If
// streams share one, their operators run in `order`, which must be a topological order of the
// graph. Streams that already fit are returned unchanged.
std::vector<std::vector<int>> FoldStreams(const std::vector<std::vector<int>>& streams,
                                          const std::vector<double>& op_us, int num_streams,
                                          const std::vector<int>& order);

// The operators by the time at which each could start if there were always a free stream. Ties are
// in topological order, and so the result is a topological order too.
std::vector<int> EarliestFirst(const OpGraph& graph, const std::vector<double>& op_us);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_FOLD_STREAMS_H_

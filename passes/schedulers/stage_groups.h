#ifndef PASSES_SCHEDULERS_STAGE_GROUPS_H_
#define PASSES_SCHEDULERS_STAGE_GROUPS_H_

#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/stage_batch.h"

namespace tvm_interop {

// Appends the stage of some operators: its groups are their weakly connected components, each in
// topological order, by first operator.
void AppendStage(const OpGraph& graph, const std::vector<int>& ops, StageBatch* batch);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_GROUPS_H_

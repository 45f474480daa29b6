#ifndef PASSES_SCHEDULERS_STAGE_GROUPS_H_
#define PASSES_SCHEDULERS_STAGE_GROUPS_H_

#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/stage_batch.h"

namespace tvm_interop {

// Appends a stage of the given operators to the batch. The groups of the stage are the weakly
// connected components of the operators. Each group is in topological order, and the groups are
// sorted by first operator.
void AppendStage(const OpGraph& graph, const std::vector<int>& ops, StageBatch* batch);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_GROUPS_H_

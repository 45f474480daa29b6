#ifndef PASSES_SCHEDULERS_GREEDY_H_
#define PASSES_SCHEDULERS_GREEDY_H_

#include "passes/graph/op_graph.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

// The greedy schedule of IOS, section 6.1. Each stage holds the operators that are ready, each in a
// group with a stream of its own. At most `max_groups` operators (0 for any number) go into a
// stage, with the lowest ids first. The other ready operators wait for the next stage.
Schedule ScheduleGreedy(const OpGraph& graph, int max_groups);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_GREEDY_H_

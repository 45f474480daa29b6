#ifndef PASSES_SCHEDULERS_SCHEDULE_H_
#define PASSES_SCHEDULERS_SCHEDULE_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// Groups of operators that run side by side. The operators of a group run in order.
struct Stage {
  std::vector<std::vector<int>> groups;
  std::vector<int> streams;  // the stream of each group

  // The GPU that the stage runs on, or -1 if there is only one device. On several GPUs, a stage
  // waits for its inputs and for the stage before it on its own GPU. Its place among the stages of
  // other GPUs does not matter.
  int device = -1;
};

// The time and stream that a scheduler predicts for one operator.
struct Placement {
  int op;
  int stream;
  double start_us;
  double finish_us;
};

// A schedule says which operators run side by side. It is either staged or streamed, so `stages` or
// `streams` is empty.
struct Schedule {
  std::vector<Stage> stages;
  std::vector<std::vector<int>> streams;  // the operators of each stream, in order

  // The placements in the order in which the scheduler made them. Empty if there are none.
  std::vector<Placement> timeline;
  double makespan_us = 0;  // the predicted makespan; 0 if the scheduler predicts none
};

// The next two functions throw ScheduleError at the first fault and name the operators at fault. An
// operator is at fault if the graph does not have it, if the schedule holds it twice or not at all,
// or if it would run before an operator that it reads.
//
// Operators in different groups of a stage may not depend on each other, even if the groups are on
// the same stream. The reason is that the latency of a stage assumes that its groups run side by
// side.
//
// A stage on a GPU waits for its inputs and for the stage before it on its GPU. Stages may not wait
// for each other in a cycle.
void ValidateStages(const OpGraph& graph, const std::vector<Stage>& stages);
void ValidateStreams(const OpGraph& graph, const std::vector<std::vector<int>>& streams);

// The order in which stages on GPUs are launched, as indices. Each stage comes after the stages
// that it waits for. Among the stages that are ready, the first in the list comes next. Throws as
// ValidateStages does.
std::vector<int> LaunchOrder(const OpGraph& graph, const std::vector<Stage>& stages);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_SCHEDULE_H_

#ifndef PASSES_SCHEDULERS_SCHEDULE_H_
#define PASSES_SCHEDULERS_SCHEDULE_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// Groups that run side by side; the operators of a group run in order.
struct Stage {
  std::vector<std::vector<int>> groups;
  std::vector<int> streams;  // of each group
  // Which of several GPUs it runs on; -1 where there is one device. With GPUs, a stage waits for
  // the one before it on its own GPU and for its inputs, wherever the others stand in the list.
  int device = -1;
};

// One operator as a scheduler predicts it.
struct Placement {
  int op;
  int stream;
  double start_us;
  double finish_us;
};

// Which operators run side by side. Either staged or streamed: of `stages` and `streams` one is
// empty.
struct Schedule {
  std::vector<Stage> stages;
  std::vector<std::vector<int>> streams;  // the operators of each stream, in order
  // In the order in which the scheduler placed them; empty where it predicts nothing.
  std::vector<Placement> timeline;
  double makespan_us = 0;  // predicted, by those schedulers that do
};

// Both throw ScheduleError at the first fault, naming the operators at fault: an operator that the
// graph does not have, that is there twice or not at all, or that would run before one it reads.
//
// Operators of different groups of a stage may not depend on each other, whatever their streams:
// the groups were priced as running side by side.
//
// Stages on GPUs may not wait for each other in a circle, each for its inputs and for the stage
// before it on its GPU.
void ValidateStages(const OpGraph& graph, const std::vector<Stage>& stages);
void ValidateStreams(const OpGraph& graph, const std::vector<std::vector<int>>& streams);

// The order in which stages on GPUs are launched, as indices: each behind those that it waits for;
// of those that are ready, the first in the list. Throws as ValidateStages does.
std::vector<int> LaunchOrder(const OpGraph& graph, const std::vector<Stage>& stages);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_SCHEDULE_H_

#ifndef PASSES_SCHEDULE_H_
#define PASSES_SCHEDULE_H_

#include <vector>

#include "passes/op_graph.h"

namespace tvm_interop {

// Groups that run side by side; the operators of a group run in order.
struct Stage {
  enum class Kind {
    kConcurrent,
    kMerge,  // one wider operator in place of several (IOS, section 3); no scheduler makes it yet
  };
  Kind kind = Kind::kConcurrent;
  std::vector<std::vector<int>> groups;
  std::vector<int> streams;  // of each group
  // Whether every operator of this stage waits for all of the stages before it, rather than only
  // for those it depends on.
  bool barrier = false;
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
void ValidateStages(const OpGraph& graph, const std::vector<Stage>& stages);
void ValidateStreams(const OpGraph& graph, const std::vector<std::vector<int>>& streams);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULE_H_

#ifndef PASSES_SIMULATE_CONTENTION_H_
#define PASSES_SIMULATE_CONTENTION_H_

#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

// A device whose running operators share cores and memory bandwidth as `SharedDevice` says, and
// what each asks of it.
struct Contention {
  double cores;      // infinity for no limit
  double bandwidth;  // how many operators that do nothing but move bytes run at full speed
  std::vector<double> op_cores;      // how many cores each operator keeps busy alone
  std::vector<double> memory_share;  // the share of its time alone that each waits for memory
  double wait_us;                    // what a wait costs the stream that waits
};

// Runs the streams event by event: an operator starts when its stream is free and what it waits for
// has finished, first pays for its waits, and then advances at a rate that changes whenever another
// starts or ends. `op_us` is what operators take alone; `waits` as PlanSync returns them. The
// placements are in order of start. Without limits and at no cost for waits the makespan is that of
// SimulateStreams. O(n * running operators). Throws PlanError for streams that cannot be run, and
// ScheduleError where that takes longer than a double can hold.
Schedule SimulateContention(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                            const std::vector<std::vector<int>>& waits,
                            const std::vector<double>& op_us, const Contention& contention);

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_CONTENTION_H_

#ifndef PASSES_SIMULATE_CONTENTION_H_
#define PASSES_SIMULATE_CONTENTION_H_

#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/schedule.h"

namespace tvm_interop {

// A device whose running operators share cores and memory bandwidth, and the demand of each
// operator. `SharedDevice` says how much sharing slows an operator down.
struct Contention {
  double cores;                  // the number of cores; infinity for no limit
  double bandwidth;              // how many purely memory-bound operators run at once at full speed
  std::vector<double> op_cores;  // how many cores each operator keeps busy when it runs alone
  std::vector<double> memory_share;  // share of its latency in which an operator waits for memory
  double wait_us;                    // how long a wait delays the stream that waits
};

// Simulates the streams event by event. An operator starts when its stream is free and all
// operators it waits for have finished. First the delay for its waits passes. Then the operator
// advances at a rate that changes whenever another operator starts or ends. `op_us` holds the
// latency of each operator when it runs alone. `waits` are as PlanSync returns them. The placements
// are in order of start.
//
// If cores and bandwidth are not limited and waits cost no time, the makespan is the same as by
// SimulateStreams. Takes O(n * running operators). Throws PlanError for streams that cannot be run.
// Throws ScheduleError if the run takes longer than a double can hold.
Schedule SimulateContention(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                            const std::vector<std::vector<int>>& waits,
                            const std::vector<double>& op_us, const Contention& contention);

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_CONTENTION_H_

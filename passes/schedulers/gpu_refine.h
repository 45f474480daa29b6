#ifndef PASSES_SCHEDULERS_GPU_REFINE_H_
#define PASSES_SCHEDULERS_GPU_REFINE_H_

#include <cstdint>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/gpu_windows.h"
#include "passes/schedulers/stage_prices.h"

namespace tvm_interop {

struct RefineOptions {
  int window = 2;           // the most operators in a stage
  int64_t trials = 0;       // the largest number of changes to try
  double time_limit_s = 0;  // the search ends after this time, even if trials are left
  uint64_t seed = 0;
};

struct RefineResult {
  GpuSchedule schedule;
  int64_t trials = 0;         // how many changes were tried
  bool is_cut_short = false;  // whether the time limit ended the search
};

// Refines a schedule over GPUs by simulated annealing (Kirkpatrick et al., 1983). The search tries
// random changes. A change that makes the schedule slower is kept with a probability that falls to
// almost 0 during the search. The result is the best schedule seen, so it is never slower than
// `initial`. The same seed gives the same result unless the time runs out. The search ends early
// when the schedule is as short as the longest path.
//
// A change is one of the following. An operator moves to another GPU or to another place in the
// order. An operator joins a stage of other operators, or leaves such a stage. Two stages exchange
// their GPUs. Two GPUs exchange all their stages from some position in the order on. All stages are
// in one order that agrees with the dependencies, so no change can make them wait for each other in
// a cycle. Operators of a longest path are moved most often. Operators are put side by side only if
// `prices` has the latency of a stage of these operators.
//
// Throws ScheduleError if the stages of `initial` wait for each other in a circle, or if `prices`
// lacks the latency of one of them. Takes O(trials * (n + edges)) at worst. After a change, only
// the stages from the changed position on are computed again, and only until the change is known to
// be too slow.
RefineResult RefineOnGpus(const GpuCosts& costs, const GpuStages& initial,
                          const StagePrices& prices, const RefineOptions& options);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_GPU_REFINE_H_

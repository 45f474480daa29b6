#ifndef PASSES_SCHEDULERS_GPU_REFINE_H_
#define PASSES_SCHEDULERS_GPU_REFINE_H_

#include <cstdint>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/gpu_windows.h"
#include "passes/schedulers/stage_prices.h"

namespace tvm_interop {

struct RefineOptions {
  int window = 2;           // most operators of a stage
  int64_t trials = 0;       // changes to try
  double time_limit_s = 0;  // it ends after so long, whatever is left to try
  uint64_t seed = 0;
};

struct RefineResult {
  GpuSchedule schedule;
  int64_t trials = 0;         // of the changes
  bool is_cut_short = false;  // whether the time ran out
};

// Simulated annealing from a schedule over GPUs (Kirkpatrick et al., 1983): random changes, those
// for the worse kept with a probability that falls to nothing. What comes back is the best schedule
// seen, never worse than `initial`; the same for the same seed unless the time runs out. It ends
// early when the schedule is as short as the longest path.
//
// A change moves an operator to another GPU or another place in the order, into a stage of others
// or out of it; lets two stages exchange their GPUs; or lets two GPUs exchange all that they run
// from some time on. Stages stand in one order that agrees with the data, so no change can make
// them wait for each other in a circle. Operators of a longest path are moved most often. Operators
// are put side by side only where `prices` knows what they take together.
//
// The stages of `initial` must not wait for each other in a circle, and their prices be known; else
// ScheduleError. O(trials * (n + edges)) at worst: only what lies behind a change is computed anew,
// and no further than up to where it is seen to be too late.
RefineResult RefineOnGpus(const GpuCosts& costs, const GpuStages& initial,
                          const StagePrices& prices, const RefineOptions& options);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_GPU_REFINE_H_

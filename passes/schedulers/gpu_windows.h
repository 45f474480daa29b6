#ifndef PASSES_SCHEDULERS_GPU_WINDOWS_H_
#define PASSES_SCHEDULERS_GPU_WINDOWS_H_

#include <vector>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"
#include "passes/schedulers/stage_batch.h"
#include "passes/schedulers/stage_prices.h"

namespace tvm_interop {

// The stages of each GPU, in order: ids of operators that start together.
using GpuStages = std::vector<std::vector<std::vector<int>>>;

struct GpuSchedule {
  GpuStages stages;
  double makespan_us = 0;
};

// The order in which windows are opened.
enum class WindowOrder {
  kPriority,  // HIOS, Algorithm 2
  kStart,     // for schedules that do not follow the priorities, such as HEFT's
};

// All that `OpenWindows` may ask the price of: 2 to `window` operators, one behind the other on a
// GPU, none of which depends on another. Each operator is a group.
StageBatch WindowCandidates(const GpuCosts& costs, const GpuOrders& orders, int window);

// Neighbours on a GPU put side by side (HIOS, Algorithm 2): for each operator that is alone in its
// stage, the 1 to `window` - 1 operators behind it join it if none depends on another, no stages
// then wait for each other in a circle, and the latency becomes lower; of several such numbers the
// best, ties the smallest. The listing keeps a merged stage before it knows whether that is better
// (line 11 before line 14), and looks for circles along the data alone; here only what is better
// stays, and circles may lead along the order of the operators on a GPU too.
//
// A stage starts once its GPU is free and all inputs of all its operators are there, and its
// operators end together. Windows that `prices` lacks stay apart; with `window` 1 all do, and the
// makespan is that of the orders as they are. Throws ScheduleError, naming the
// operators, where these wait for each other in a circle.
//
// O(n + edges) for each operator on a longest path: a stage that is on none cannot shorten it.
GpuSchedule OpenWindows(const GpuCosts& costs, const GpuOrders& orders, int window,
                        const StagePrices& prices, WindowOrder order);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_GPU_WINDOWS_H_

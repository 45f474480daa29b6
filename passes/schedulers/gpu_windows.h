#ifndef PASSES_SCHEDULERS_GPU_WINDOWS_H_
#define PASSES_SCHEDULERS_GPU_WINDOWS_H_

#include <vector>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"
#include "passes/schedulers/stage_batch.h"
#include "passes/schedulers/stage_prices.h"

namespace tvm_interop {

// The stages of each GPU, in order. Each stage is the ids of operators that start together.
using GpuStages = std::vector<std::vector<std::vector<int>>>;

struct GpuSchedule {
  GpuStages stages;
  double makespan_us = 0;
};

// The order in which `OpenWindows` looks at the operators.
enum class WindowOrder {
  kPriority,  // by priority, as in HIOS, Algorithm 2
  kStart,     // by start time, for schedules that do not follow the priorities, such as HEFT's
};

// All windows whose price `OpenWindows` may need. A window holds 2 to `window` operators that
// follow each other on a GPU. None of them depends on another. Each operator is a group.
StageBatch WindowCandidates(const GpuCosts& costs, const GpuOrders& orders, int window);

// Merges neighbouring operators on a GPU into stages, so that they run side by side (HIOS,
// Algorithm 2). For each operator that is alone in its stage, up to `window` - 1 operators behind
// it may join it. They join if three things hold: none of them depends on another, no stages then
// wait for each other in a circle, and the latency gets lower. If several numbers of operators may
// join, the best is taken, with ties to the smallest.
//
// This differs from the paper's listing in two ways. The listing keeps a merged stage before it
// knows whether that is better (line 11 before line 14); here only an improvement is kept. The
// listing looks for circles along the data alone; here a circle may also lead along the order of
// operators on a GPU.
//
// A stage starts once its GPU is free and all inputs of all its operators are there. Its operators
// end together. Windows without a price in `prices` stay apart. With `window` 1 all operators stay
// apart, and the makespan is the makespan of `orders` as given. Throws ScheduleError, naming the
// operators, if the orders make operators wait for each other in a circle.
//
// Takes O(n + edges) for each operator on a longest path. A window without an operator on the known
// longest path is not tried, because it cannot shorten that path.
GpuSchedule OpenWindows(const GpuCosts& costs, const GpuOrders& orders, int window,
                        const StagePrices& prices, WindowOrder order);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_GPU_WINDOWS_H_

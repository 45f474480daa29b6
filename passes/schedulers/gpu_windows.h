#ifndef PASSES_SCHEDULERS_GPU_WINDOWS_H_
#define PASSES_SCHEDULERS_GPU_WINDOWS_H_

#include <vector>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"
#include "passes/schedulers/stage_batch.h"
#include "passes/schedulers/stage_prices.h"

namespace tvm_interop {

// The stages of each GPU, in order. A stage is the list of the ids of operators that start
// together.
using GpuStages = std::vector<std::vector<std::vector<int>>>;

struct GpuSchedule {
  GpuStages stages;
  double makespan_us = 0;
};

// The order in which `OpenWindows` looks at the operators.
enum class WindowOrder {
  kPriority,  // by priority, as in HIOS, Algorithm 2
  kStart,     // by start time; for schedules whose order is not that of the priorities, as in HEFT
};

// All windows whose latencies `OpenWindows` may need. A window holds 2 to `window` operators that
// follow each other on a GPU and do not depend on each other. In the batch, each operator of a
// window is a separate group.
StageBatch WindowCandidates(const GpuCosts& costs, const GpuOrders& orders, int window);

// Merges neighbouring operators on a GPU into stages, so that they run side by side (HIOS,
// Algorithm 2). Such a stage is called a window. It holds an operator that was alone in its stage,
// and up to `window` - 1 operators that follow it on the GPU. Operators are merged if three
// conditions hold: none of them depends on another, no stages then wait for each other in a circle,
// and the latency of the schedule gets lower. If several windows begin with the same operator, the
// window that gives the lowest latency of the schedule is taken, with ties to the smallest window.
//
// This differs from the paper's listing in two ways. First, the listing keeps a merged stage (line
// 11) before it tests whether the stage improves the schedule (line 14). Here a merged stage is
// kept only if it is an improvement. Second, the listing looks for cycles only along the edges of
// the graph. Here a cycle may also lead from an operator to the next operator on its GPU.
//
// A stage starts once its GPU is free and all inputs of all its operators have arrived. Its
// operators end together. Operators are not merged if `prices` has no latency for them. With
// `window` 1, no operators are merged, and the result has the makespan of `orders`. Throws
// ScheduleError, naming the operators, if the orders make operators wait for each other in a
// circle.
//
// Takes O(n + edges) for each operator on a longest path. A window without an operator on the
// longest path that was found is not tried, because it cannot shorten this path.
GpuSchedule OpenWindows(const GpuCosts& costs, const GpuOrders& orders, int window,
                        const StagePrices& prices, WindowOrder order);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_GPU_WINDOWS_H_

#ifndef PASSES_SCHEDULERS_HEFT_H_
#define PASSES_SCHEDULERS_HEFT_H_

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"

namespace tvm_interop {

// HEFT (Topcuoglu et al., 2002): by rank, each operator goes to the GPU on which it finishes first,
// into the first gap between others that holds it. Ties: the lowest GPU.
//
// With `look_ahead` (Bittencourt et al., 2010) it goes to the GPU on which the last of its readers,
// placed next on their best GPUs one after the other, finishes first.
//
// O(n * gpus * (edges of an operator + operators of a GPU)); with look-ahead times gpus and the
// readers of an operator.
GpuOrders ScheduleHeft(const GpuCosts& costs, int gpus, bool look_ahead);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_HEFT_H_

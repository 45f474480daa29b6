#ifndef PASSES_SCHEDULERS_HEFT_H_
#define PASSES_SCHEDULERS_HEFT_H_

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"

namespace tvm_interop {

// HEFT (Topcuoglu et al., 2002). Operators are placed by rank. Each goes to the GPU on which it
// finishes first, into the first gap between other operators that is long enough. Ties go to the
// lowest GPU.
//
// With `look_ahead` (Bittencourt et al., 2010), the readers of an operator are placed tentatively
// after it, one after the other, each on its best GPU. The operator goes to the GPU for which the
// last of its readers finishes first. Ties go to the GPU on which the operator itself finishes
// first.
//
// Takes O(n * gpus * (edges of an operator + operators of a GPU)). Look-ahead multiplies this by
// the number of GPUs and by the readers of an operator.
GpuOrders ScheduleHeft(const GpuCosts& costs, int gpus, bool look_ahead);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_HEFT_H_

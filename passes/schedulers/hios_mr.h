#ifndef PASSES_SCHEDULERS_HIOS_MR_H_
#define PASSES_SCHEDULERS_HIOS_MR_H_

#include <cstddef>
#include <vector>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"

namespace tvm_interop {

// The table of Algorithm 3: for each rank and GPU, the earliest finish there, and the GPU of the
// operator before that led to it. Infinity and -1 where no mapping is looked at: the first operator
// is on GPU 0, and no GPU is used before all those in front of it could be.
class Recurrence {
 public:
  Recurrence(const GpuCosts& costs, int gpus);

  double finish_us(int rank, int gpu) const { return finish_us_[At(rank, gpu)]; }
  int before(int rank, int gpu) const { return before_[At(rank, gpu)]; }
  // The GPU of each operator, by rank, in the best of the mappings found.
  std::vector<int> Best();

 private:
  size_t At(int rank, int gpu) const { return static_cast<size_t>(rank) * gpus_ + gpu; }
  // Calls visit(finish, gpu) for all that led to `rank` on `gpu`, and fills `gpu_of_`.
  template <typename Visit>
  void WalkBack(int rank, int gpu, Visit visit);
  // Puts `rank` on each GPU, behind the mapping that has the operator before on `before`.
  void Extend(int rank, int before);

  const GpuCosts& costs_;
  const int gpus_;
  std::vector<double> finish_us_;  // t of the paper
  std::vector<int> before_;        // g of the paper
  std::vector<int> gpu_of_;        // by rank, as the last WalkBack found it
};

// HIOS-MR's mapping (HIOS, Algorithm 3 without line 23): by rank, the earliest finish of each
// operator on each GPU, over the GPUs of the operator before it. The listing takes the GPU on which
// the last operator ends first; where a graph has several sinks, another may end later, so here the
// mappings that lead there are compared by their latency. Ties: the lowest GPU.
//
// O(n * gpus * (n + gpus) + gpus^2 * edges).
GpuOrders MapByRecurrence(const GpuCosts& costs, int gpus);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_HIOS_MR_H_

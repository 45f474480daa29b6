#ifndef PASSES_SCHEDULERS_HIOS_MR_H_
#define PASSES_SCHEDULERS_HIOS_MR_H_

#include <cstddef>
#include <vector>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"

namespace tvm_interop {

// The table of Algorithm 3 of HIOS. For each rank r and each GPU, it holds the earliest finish of
// the operator of rank r if the operator runs on this GPU. It also holds the GPU on which the
// operator of rank r - 1 then runs. The operator of rank r is tried only on the GPUs 0 to r. For
// other GPUs, the finish is infinity and the GPU is -1.
class Recurrence {
 public:
  Recurrence(const GpuCosts& costs, int gpus);

  double finish_us(int rank, int gpu) const { return finish_us_[At(rank, gpu)]; }
  int before(int rank, int gpu) const { return before_[At(rank, gpu)]; }
  // The GPU of each operator, by rank, in the best mapping found.
  std::vector<int> Best();

 private:
  size_t At(int rank, int gpu) const { return static_cast<size_t>(rank) * gpus_ + gpu; }
  // Calls visit(finish, gpu) for `rank` on `gpu`, and then for each lower rank, on the GPU that the
  // table holds for it. Fills `gpu_of_`.
  template <typename Visit>
  void WalkBack(int rank, int gpu, Visit visit);
  // Tries the operator `rank` on each GPU. For the operators of lower ranks, it takes the best
  // mapping in which the operator of rank `rank` - 1 is on GPU `before`.
  void Extend(int rank, int before);

  const GpuCosts& costs_;
  const int gpus_;
  std::vector<double> finish_us_;  // earliest finishes, which the paper calls t
  std::vector<int> before_;        // GPUs of the previous operators, which the paper calls g
  std::vector<int> gpu_of_;        // for each rank, the GPU that the last call of WalkBack found
};

// HIOS-MR's mapping (HIOS, Algorithm 3 without line 23). In order of rank, it computes the earliest
// finish of each operator on each GPU. To do so, it tries every GPU for the previous operator. The
// paper's listing takes the GPU on which the last operator ends first. If a graph has several
// sinks, another operator may end later. So here the mappings that lead to the last operator are
// compared by their latency. Ties go to the lowest GPU.
//
// Takes O(n * gpus * (n + gpus) + gpus^2 * edges).
GpuOrders MapByRecurrence(const GpuCosts& costs, int gpus);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_HIOS_MR_H_

#ifndef PASSES_SCHEDULERS_LIST_ON_GPUS_H_
#define PASSES_SCHEDULERS_LIST_ON_GPUS_H_

#include <limits>
#include <vector>

#include "passes/schedulers/gpu_costs.h"

namespace tvm_interop {

// The operators of each GPU, by id, in the order in which the GPU runs them.
using GpuOrders = std::vector<std::vector<int>>;

// A mapping of operators to GPUs, to which operators are added step by step, and the latency of the
// mapped operators. Each GPU runs its operators by rank. An operator starts once its GPU is free
// and the mapped operators that it reads have finished. If it reads an operator on another GPU, the
// time of the copy is added. Operators that are not mapped do not count (HIOS, section IV-A).
//
// When operators are added, only the times of the first new operator and the operators after it are
// computed again. This takes O(gpus log n + operators + edges), counting only operators and edges
// from the first new operator on.
class ListOnGpus {
 public:
  ListOnGpus(const GpuCosts& costs, int gpus);

  static constexpr double kNoLower = std::numeric_limits<double>::infinity();

  // Returns the latency of the mapping if `ranks` are added to `gpu`. `ranks` are ascending and not
  // mapped yet. Returns kNoLower as soon as the latency is known to be `limit_us` or more.
  double Try(const std::vector<int>& ranks, int gpu, double limit_us);
  void Map(const std::vector<int>& ranks, int gpu);

  // The latency of the mapping so far. Adding operators never lowers the latency, because added
  // operators only delay others.
  double latency_us() const { return latest_us_.empty() ? 0 : latest_us_.back(); }
  bool is_mapped(int rank) const { return gpu_of_[rank] >= 0; }
  bool is_empty(int gpu) const { return on_gpu_[gpu].empty(); }
  int gpus() const { return static_cast<int>(on_gpu_.size()); }
  double finish_us(int rank) const { return finish_us_[rank]; }
  GpuOrders Orders() const;

 private:
  double Visit(const std::vector<int>& ranks, int gpu, double limit_us);

  const GpuCosts& costs_;
  std::vector<int> gpu_of_;               // for each rank, its GPU; -1 if not mapped
  std::vector<double> finish_us_;         // by rank
  std::vector<std::vector<int>> on_gpu_;  // ranks, ascending
  std::vector<int> mapped_;               // ranks, ascending
  std::vector<double> latest_us_;         // for each of `mapped_`, the latest finish so far
  std::vector<int> visited_;              // ranks visited by the last Visit
  std::vector<double> visited_us_;        // for each rank, the finish that the last Visit computed
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_LIST_ON_GPUS_H_

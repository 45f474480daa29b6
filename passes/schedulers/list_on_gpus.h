#ifndef PASSES_SCHEDULERS_LIST_ON_GPUS_H_
#define PASSES_SCHEDULERS_LIST_ON_GPUS_H_

#include <limits>
#include <vector>

#include "passes/schedulers/gpu_costs.h"

namespace tvm_interop {

// The operators of each GPU, by id, in the order in which it runs them.
using GpuOrders = std::vector<std::vector<int>>;

// A mapping of operators to GPUs that grows, and its latency: operators are visited by rank, each
// starts once its GPU is free and the mapped operators that it reads have finished, with the copy
// on top where they are on another GPU. Operators that are not mapped count nothing (HIOS, section
// IV-A).
//
// Only what lies behind the first of the new operators is computed anew: O(gpus log n) and the
// operators and edges from there on.
class ListOnGpus {
 public:
  ListOnGpus(const GpuCosts& costs, int gpus);

  static constexpr double kNoLower = std::numeric_limits<double>::infinity();

  // The latency with `ranks`, in ascending order and not mapped yet, on `gpu` besides; kNoLower as
  // soon as it is known to be `limit_us` or more.
  double Try(const std::vector<int>& ranks, int gpu, double limit_us);
  void Map(const std::vector<int>& ranks, int gpu);

  // With what is mapped now. More operators never make it lower: they only hold up others.
  double latency_us() const { return latest_us_.empty() ? 0 : latest_us_.back(); }
  bool is_mapped(int rank) const { return gpu_of_[rank] >= 0; }
  bool is_empty(int gpu) const { return on_gpu_[gpu].empty(); }
  int gpus() const { return static_cast<int>(on_gpu_.size()); }
  double finish_us(int rank) const { return finish_us_[rank]; }
  GpuOrders Orders() const;

 private:
  double Visit(const std::vector<int>& ranks, int gpu, double limit_us);

  const GpuCosts& costs_;
  std::vector<int> gpu_of_;               // by rank; -1 where not mapped
  std::vector<double> finish_us_;         // by rank
  std::vector<std::vector<int>> on_gpu_;  // ranks, ascending
  std::vector<int> mapped_;               // ranks, ascending
  std::vector<double> latest_us_;         // beside `mapped_`: the latest finish up to there
  std::vector<int> visited_;              // by the last Visit
  std::vector<double> visited_us_;        // by rank: finishes by the last Visit
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_LIST_ON_GPUS_H_

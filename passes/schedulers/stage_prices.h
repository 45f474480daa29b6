#ifndef PASSES_SCHEDULERS_STAGE_PRICES_H_
#define PASSES_SCHEDULERS_STAGE_PRICES_H_

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "passes/schedulers/stage_batch.h"

namespace tvm_interop {

// The known latencies of operators that start together on one GPU. `Find` looks up a latency by the
// operators' ids, in any order.
class StagePrices {
 public:
  StagePrices() = default;
  // Every group of a stage must be one operator. `price_us` holds the latency of each stage.
  StagePrices(const StageBatch& stages, const std::vector<double>& price_us) {
    size_t begin = 0;
    for (size_t s = 0; s < price_us.size(); ++s) {
      const size_t end = static_cast<size_t>(stages.stage_ends[s]);
      std::vector<int> ops;
      for (size_t g = begin; g < end; ++g) ops.push_back(static_cast<int>(stages.ops[g]));
      begin = end;
      std::sort(ops.begin(), ops.end());
      price_us_.emplace(std::move(ops), price_us[s]);
    }
  }

  // The latency of the operators `ops` together, or null if it is unknown.
  const double* Find(std::vector<int> ops) const {
    std::sort(ops.begin(), ops.end());
    const auto found = price_us_.find(ops);
    return found == price_us_.end() ? nullptr : &found->second;
  }

 private:
  struct Hash {
    size_t operator()(const std::vector<int>& ops) const {
      size_t hash = 0;
      for (int op : ops) hash = (hash ^ static_cast<size_t>(op)) * 0x9E3779B97F4A7C15u;
      return hash ^ (hash >> 32);
    }
  };
  std::unordered_map<std::vector<int>, double, Hash> price_us_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_PRICES_H_

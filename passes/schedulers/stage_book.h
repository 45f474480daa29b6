#ifndef PASSES_SCHEDULERS_STAGE_BOOK_H_
#define PASSES_SCHEDULERS_STAGE_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "passes/schedulers/stage_batch.h"

namespace tvm_interop {

// The known prices (latencies) of the stages of one graph, so that no search asks for a price
// twice. A stage is identified by the list of its operators. The operators of a stage must always
// be listed in the same order, such as the order of AppendStage.
class StageBook {
 public:
  void Write(const StageBatch& stages, const std::vector<double>& price_us);
  // The price (latency) of each stage, or NaN if it is unknown.
  std::vector<double> Read(const StageBatch& stages) const;

 private:
  struct Hash {
    size_t operator()(const std::vector<int64_t>& ops) const;
  };

  std::unordered_map<std::vector<int64_t>, double, Hash> price_us_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_BOOK_H_

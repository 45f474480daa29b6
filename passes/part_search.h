#ifndef PASSES_PART_SEARCH_H_
#define PASSES_PART_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "passes/ios.h"

namespace tvm_interop {

// IOS on one part of the graph: a block, or a piece of one.
class PartSearch {
 public:
  // `ops` in topological order, consecutive in it.
  static std::unique_ptr<PartSearch> Make(const OpGraph& graph, std::vector<int> ops,
                                          const EndingLimits& limits);
  virtual ~PartSearch() = default;

  // Finds the states, the transitions between them and the distinct stages, and appends the stages
  // to `stages`. False when there are more than `max_transitions`; nothing is appended then.
  virtual bool Enumerate(int64_t max_transitions, StageBatch* stages) = 0;
  // Adds what Enumerate found to `stats`.
  virtual void CountInto(IosStats* stats) const = 0;
  // The stages of the cheapest way through, first to run first, as indices into the batch.
  virtual std::vector<size_t> Solve(const std::vector<double>& price_us) const = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_PART_SEARCH_H_

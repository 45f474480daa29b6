#ifndef PASSES_PART_SEARCH_H_
#define PASSES_PART_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "passes/ios.h"

namespace tvm_interop {

// A stage whose price may matter.
struct WantedStage {
  size_t stage;          // index into the batch
  double above_best_us;  // how much more than the best the cheapest way through it costs
};

// IOS on one part of the graph: a block, or a piece of one.
class PartSearch {
 public:
  // `ops` in topological order, consecutive in it.
  static std::unique_ptr<PartSearch> Make(const OpGraph& graph, std::vector<int> ops,
                                          const EndingLimits& limits);
  virtual ~PartSearch() = default;

  // Finds the states, the transitions between them and the distinct stages, which go to `stages`.
  // False when there are more than `max_transitions`; `stages` is then left as it was.
  virtual bool Enumerate(int64_t max_transitions, StageBatch* stages) = 0;
  // Tells it that its stages start at `first_stage` in the batch that holds all parts' stages.
  virtual void SetFirstStage(size_t first_stage) = 0;
  // How many transitions it holds.
  virtual size_t num_transitions() const = 0;
  // Adds what Enumerate found to `stats`.
  virtual void CountInto(IosStats* stats) const = 0;
  // The stages of the cheapest way through, first to run first, as indices into the batch.
  virtual std::vector<size_t> Solve(const std::vector<double>& price_us) const = 0;
  // Appends to `on_best` the stages of the cheapest way that are not priced. Where there are any,
  // appends to `others` all further stages not priced that a way as cheap as the cheapest of
  // priced stages alone may lead through. `value_us` holds prices, and lower bounds of the others.
  virtual void Want(const std::vector<double>& value_us, const std::vector<char>& is_priced,
                    std::vector<size_t>* on_best, std::vector<WantedStage>* others) const = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_PART_SEARCH_H_

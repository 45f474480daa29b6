#ifndef PASSES_SCHEDULERS_PART_SEARCH_H_
#define PASSES_SCHEDULERS_PART_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "passes/schedulers/ios.h"

namespace tvm_interop {

// A stage whose price (latency) is not known yet. Its price may change which schedule is the
// cheapest.
struct WantedStage {
  size_t stage;  // index into the batch of all stages

  // The cost of the cheapest sequence of stages with this stage, minus the cost of the cheapest
  // sequence of all.
  double above_best_us;
};

// The cheapest way from each state of a part to the end of the part. A way is a sequence of
// transitions, and its cost is the sum of the prices of its stages.
struct CheapestWays {
  static constexpr size_t kUnknown = std::numeric_limits<size_t>::max();

  std::vector<double> cost_us;
  std::vector<size_t> first;  // for each state, the first transition of its cheapest way
};

// The IOS search of one part of the graph. A part is a block, a piece of a block, or a window of
// stages.
class PartSearch {
 public:
  // Makes a search of `ops`, which must be in topological order and include every operator on a
  // path between two of them.
  static std::unique_ptr<PartSearch> Make(const OpGraph& graph, std::vector<int> ops,
                                          const EndingLimits& limits);
  // Makes a part of any size, which runs all its operators in one stage.
  static std::unique_ptr<PartSearch> MakeFixed(const OpGraph& graph, std::vector<int> ops);
  virtual ~PartSearch() = default;

  // Finds the states, the transitions between them and the distinct stages, and writes the stages
  // to `stages`. Returns false, and leaves `stages` as it was, in three cases: there are more than
  // `max_transitions` transitions, the sets exceed their own limit of memory, or `is_over` returns
  // true.
  virtual bool Enumerate(int64_t max_transitions, const std::function<bool()>& is_over,
                         StageBatch* stages) = 0;
  // Tells this part the index of its first stage in the batch that holds the stages of all parts.
  virtual void SetFirstStage(size_t first_stage) = 0;
  // The number of transitions that the part holds.
  virtual size_t num_transitions() const = 0;
  // Adds the numbers of states, transitions and stages that Enumerate found to `stats`.
  virtual void CountInto(IosStats* stats) const = 0;
  // The stages of the cheapest way through the part, in the order in which they run, as indices
  // into the batch. Pass a new `ways`, or the `ways` of the last call if no value has become
  // smaller since then. With the old `ways`, only states whose cost has changed are computed again.
  virtual std::vector<size_t> Solve(const std::vector<double>& value_us,
                                    CheapestWays* ways) const = 0;
  // Appends to `near` the stages without a price that are on a cheap way. A way is cheap if it
  // costs at most `gap_us` more than the cheapest way, and no more than the cheapest way that has
  // only priced stages. Returns the smallest gap with which there may be more such stages, or
  // infinity if there are no more. `ways` must come from Solve.
  virtual double FindNear(const std::vector<double>& value_us, const std::vector<char>& is_priced,
                          const CheapestWays& ways, double gap_us,
                          std::vector<WantedStage>* near) const = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_PART_SEARCH_H_

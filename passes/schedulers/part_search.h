#ifndef PASSES_SCHEDULERS_PART_SEARCH_H_
#define PASSES_SCHEDULERS_PART_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "passes/schedulers/ios.h"

namespace tvm_interop {

// A stage whose price may matter.
struct WantedStage {
  size_t stage;          // index into the batch
  double above_best_us;  // how much more than the best the cheapest way through it costs
};

// The cheapest ways from each state of a part to its end.
struct CheapestWays {
  static constexpr size_t kUnknown = std::numeric_limits<size_t>::max();

  std::vector<double> cost_us;
  std::vector<size_t> first;  // the transition that the way starts with
};

// IOS on one part of the graph: a block, or a piece of one.
class PartSearch {
 public:
  // `ops` in topological order, with all that lies on a path between two of them.
  static std::unique_ptr<PartSearch> Make(const OpGraph& graph, std::vector<int> ops,
                                          const EndingLimits& limits);
  // All the operators in one stage, whatever its size.
  static std::unique_ptr<PartSearch> MakeFixed(const OpGraph& graph, std::vector<int> ops);
  virtual ~PartSearch() = default;

  // Finds the states, the transitions between them and the distinct stages, which go to `stages`.
  // False when there are more than `max_transitions`, or when `is_over` says so; `stages` is then
  // left as it was.
  virtual bool Enumerate(int64_t max_transitions, const std::function<bool()>& is_over,
                         StageBatch* stages) = 0;
  // Tells it that its stages start at `first_stage` in the batch that holds all parts' stages.
  virtual void SetFirstStage(size_t first_stage) = 0;
  // How many transitions it holds.
  virtual size_t num_transitions() const = 0;
  // Adds what Enumerate found to `stats`.
  virtual void CountInto(IosStats* stats) const = 0;
  // The stages of the cheapest way through, first to run first, as indices into the batch. `ways`
  // is new, or what the last call made of it if no value has fallen since: then only states with
  // another cost are looked at again.
  virtual std::vector<size_t> Solve(const std::vector<double>& value_us,
                                    CheapestWays* ways) const = 0;
  // Appends to `near` the stages not priced that are on a way that costs at most `gap_us` more than
  // the cheapest, and no more than the cheapest of priced stages alone. Returns the least gap that
  // may find more of them, infinity where there are no more. `ways` is what Solve made of it.
  virtual double FindNear(const std::vector<double>& value_us, const std::vector<char>& is_priced,
                          const CheapestWays& ways, double gap_us,
                          std::vector<WantedStage>* near) const = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_PART_SEARCH_H_

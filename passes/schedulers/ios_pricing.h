#ifndef PASSES_SCHEDULERS_IOS_PRICING_H_
#define PASSES_SCHEDULERS_IOS_PRICING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "passes/schedulers/ios.h"
#include "passes/schedulers/part_search.h"
#include "passes/schedulers/stage_batch.h"
#include "passes/schedulers/stage_book.h"

namespace tvm_interop {

// How a stage is bounded from below by what its operators take alone.
struct StageBounds {
  std::vector<double> op_us;  // of each operator, to pack groups by; used where num_streams > 0
  int num_streams = 0;        // stages are packed onto that many streams first; 0 for no limit
  int cores = 0;              // a stage takes its total work over `cores` or more; 0 for no limit
  // Microseconds that each operator takes of all the cores it uses, together; empty where that is
  // what it takes alone.
  std::vector<double> work_us = {};
  double tolerance = 0;  // the share by which a price may fall short of its bound,
  double slack_us = 0;   // and by how many microseconds besides
  double scale = 1;      // what the bounds were scaled down to before
};

// What one call of WantedStages leaves for the next. It holds as long as no value falls: start anew
// when one does.
struct PricingProgress {
  explicit PricingProgress(size_t num_parts) : ways(num_parts), is_solved(num_parts) {}

  std::vector<CheapestWays> ways;  // of each part
  std::vector<char> is_solved;     // of each part: its cheapest way is priced
  double gap_us = 0;               // how far above the cheapest way to look first; any will do
};

// The stages worth pricing next, where stage i takes `value_us[i]`, or is guessed to unless
// `is_priced[i]`; single operators must be priced. First those on the cheapest way through each
// part, then, up to `at_least`, those through which the cheapest way costs least more. None where
// the cheapest way is priced.
std::vector<size_t> WantedStages(const IosSearch& search, const std::vector<double>& value_us,
                                 const std::vector<char>& is_priced, size_t at_least,
                                 PricingProgress* progress);

// Prices only those stages that an optimal schedule may need. As long as no price is below its
// bound, the outcome is the same, to the last bit and tie, as when all are priced.
//
// A stage takes at least as long as its longest group, operators summed as they take alone, and at
// least its total work over the cores: an operator that has several cores is that much more work.
// The search is solved with these bounds in place of the prices that are not known yet; the stages
// on the way it finds are priced; and so on until it finds a way of priced stages alone. No other
// way is cheaper then: its cost is at least what the bounds say, and that is no less.
//
// Each round, stages beyond those on the way are taken along: those through which the cheapest way
// costs least more than the best, unless a priced way is known that is no dearer.
//
// A price below its bound by more than the tolerance and the slack is counted, and all bounds are
// scaled down to the worst ratio seen, less both: the search goes on with what can still be
// trusted.
class IosPricing {
 public:
  // What is in `book` is not asked for, and what is asked for goes into it. Both must outlive the
  // pricing.
  IosPricing(const IosSearch& search, StageBook* book);

  // The bounds are made of what each operator of the graph takes alone, and stages of one operator
  // take that.
  void SetBounds(const std::vector<double>& alone_us, const StageBounds& bounds);

  // Prices of stages that are known without being asked for; after SetBounds, before Next.
  void Give(const std::vector<size_t>& stages, const std::vector<double>& price_us);

  // The stages to price next, ascending; none once the optimum is known. All those on the best
  // way, and more up to `at_least`.
  std::vector<size_t> Next(size_t at_least);
  // Prices of what Next returned last. Returns how many were below their bound. Infinity says that
  // the stage could not be priced: it is not chosen, nor is any other that has no price yet, and
  // Next asks for no more.
  int64_t SetPrices(const std::vector<double>& price_us);

  // What each stage takes, or at least takes: what to solve the search with.
  const std::vector<double>& value_us() const { return value_us_; }
  // How many stages have a price, or are known to get none.
  size_t num_priced() const;
  // What the bounds were scaled down to, 1 at first.
  double scale() const { return scale_; }

 private:
  void Relax(double scale);
  // Leaves what is not priced out of the search.
  void GiveUp();

  const IosSearch& search_;
  StageBook* const book_;
  double tolerance_ = 0, slack_us_ = 0;
  double scale_ = 1;
  std::vector<double> bound_us_;  // not scaled
  std::vector<double> value_us_;
  std::vector<char> is_priced_;
  PricingProgress progress_;
  std::vector<size_t> asked_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_IOS_PRICING_H_

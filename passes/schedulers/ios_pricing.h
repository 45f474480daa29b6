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

// Settings for the lower bound of a stage's latency. The bound is computed from the latencies that
// its operators have when each runs alone.
struct StageBounds {
  std::vector<double> op_us;  // latencies by which groups are packed; used only if num_streams > 0
  int num_streams = 0;        // the number of streams that a stage is packed onto; 0 for no limit

  // The number of cores. A stage takes at least its total work divided by `cores`. If `cores` is 0,
  // this bound is not used.
  int cores = 0;
  // By operator, the work in microseconds, summed over all the cores that the operator uses. Empty
  // if every operator uses one core.
  std::vector<double> work_us = {};
  double tolerance = 0;  // the share of a bound by which the price may be below the bound
  double slack_us = 0;   // further microseconds by which the price may be below the bound
  double scale = 1;      // the factor by which earlier searches multiplied the bounds
};

// The data that one call of WantedStages passes on to the next call. They are valid as long as no
// entry of `value_us` becomes smaller. When one does, start with a new PricingProgress.
struct PricingProgress {
  explicit PricingProgress(size_t num_parts) : ways(num_parts), is_solved(num_parts) {}

  std::vector<CheapestWays> ways;  // by part
  std::vector<char> is_solved;     // for each part, whether its cheapest stages have prices

  // A number of microseconds. The search first looks at sequences of stages that cost at most this
  // much more than the cheapest sequence. The number changes only the time of the search, not the
  // result.
  double gap_us = 0;
};

// The stages whose prices (latencies) are wanted next. `value_us[i]` is the price of stage i if
// `is_priced[i]`, and a lower bound of the price otherwise. Stages of a single operator must be
// priced. A way through a part is a sequence of stages that runs all its operators. The detour of a
// stage is the cost of the cheapest way that uses the stage, minus the cost of the cheapest way of
// all. First come the unpriced stages on the cheapest way through each part. Then come the unpriced
// stages with the smallest detours, until there are `at_least` stages. The result is empty if all
// stages of the cheapest ways are priced.
std::vector<size_t> WantedStages(const IosSearch& search, const std::vector<double>& value_us,
                                 const std::vector<char>& is_priced, size_t at_least,
                                 PricingProgress* progress);

// Asks for the prices (latencies) of only those stages that an optimal schedule may need. If no
// price is below its bound, the schedule is exactly the schedule that all prices would give, also
// where costs are equal.
//
// A stage takes at least as long as its longest group. A group takes the sum of the latencies that
// its operators have when they run alone. It also takes at least its total work divided by the
// number of cores. The work of an operator is summed over all the cores that the operator uses. In
// each round, the search is solved with these bounds in place of the unknown prices, and the stages
// of the schedule found are priced. The rounds end when all stages of the schedule found have
// prices. Then no other schedule is cheaper: the cost of another schedule is at least the sum of
// its bounds and prices, and this sum is at least the cost of the schedule found.
//
// Each round also prices some further stages, namely the stages that add least to the cost of a
// schedule. A stage is left out if a schedule of priced stages is cheaper than every schedule with
// this stage.
//
// If a price is below its bound by more than the tolerance and the slack, it is counted. All bounds
// are then multiplied by the lowest ratio of a price to its bound, and lowered by the tolerance and
// the slack. The search goes on with the lowered bounds.
class IosPricing {
 public:
  // Stages whose price (latency) is in `book` are not asked for, and new prices are written into
  // `book`. `search` and `book` must outlive the pricing.
  IosPricing(const IosSearch& search, StageBook* book);

  // Sets the bounds. `alone_us` holds the latency of each operator of the graph when it runs alone.
  // It is also the price of a stage that holds only this operator.
  void SetBounds(const std::vector<double>& alone_us, const StageBounds& bounds);

  // Sets prices (latencies) of stages that Next has not asked for. Call it after SetBounds and
  // before Next.
  void Give(const std::vector<size_t>& stages, const std::vector<double>& price_us);

  // The stages whose prices (latencies) the caller must find next, ascending: all unpriced stages
  // of the cheapest schedule, and further stages until there are `at_least`. The result is empty
  // once the optimum is known.
  std::vector<size_t> Next(size_t at_least);
  // Sets the prices (latencies) of the stages that Next returned last. Returns how many prices were
  // below their bound. A price of infinity says that the latency of the stage could not be found.
  // From then on, Next asks for no more stages. This stage and all stages without a price are never
  // chosen.
  int64_t SetPrices(const std::vector<double>& price_us);

  // The latency of each stage, or its lower bound if the latency is unknown. The search is solved
  // with these values.
  const std::vector<double>& value_us() const { return value_us_; }
  // How many stages have a price (latency), or will never get one.
  size_t num_priced() const;
  // The factor by which the bounds are multiplied. It is 1 until SetBounds is called.
  double scale() const { return scale_; }

 private:
  void Relax(double scale);
  // Leaves all stages without a price (latency) out of the search.
  void GiveUp();

  const IosSearch& search_;
  StageBook* const book_;
  double tolerance_ = 0, slack_us_ = 0;
  double scale_ = 1;
  std::vector<double> bound_us_;  // the bounds before they are multiplied by `scale_`
  std::vector<double> value_us_;
  std::vector<char> is_priced_;
  PricingProgress progress_;
  std::vector<size_t> asked_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_IOS_PRICING_H_

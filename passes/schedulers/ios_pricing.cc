#include "passes/schedulers/ios_pricing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "passes/graph/error.h"

namespace tvm_interop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The search looks only at sequences of stages whose cost exceeds the cost of the cheapest sequence
// by at most a limit, called the gap. Each call asks for more stages than the last call. So it
// starts with kGapGrowth times the gap that the last call needed. A gap that is too large is better
// than a gap that is too small, which makes a second search necessary.
constexpr double kGapGrowth = 1.25;

std::vector<double> WorkOf(const StageBatch& stages, const std::vector<double>& op_us) {
  std::vector<double> work_us;
  work_us.reserve(stages.num_stages());
  int64_t op = 0;
  for (const int64_t end_group : stages.stage_ends) {
    double sum = 0;
    for (; op < stages.group_ends[end_group - 1]; ++op) sum += op_us[stages.ops[op]];
    work_us.push_back(sum);
  }
  return work_us;
}

// Returns the `count` stages that add least to the cost of a part. A way is a sequence of stages
// that runs all operators of the part. A stage adds the cost of the cheapest way that uses the
// stage, minus the cost of the cheapest way. The stage that adds least comes first. Returns fewer
// stages if there are no more. Parts that are solved and stages marked in `is_wanted` are left out.
std::vector<WantedStage> NearestStages(const IosSearch& search, const std::vector<double>& value_us,
                                       const std::vector<char>& is_priced,
                                       const std::vector<char>& is_wanted, size_t count,
                                       PricingProgress* progress) {
  std::vector<WantedStage> near;
  for (double gap_us = progress->gap_us, next_us = 0; next_us < kInfinity;
       gap_us = std::max(2 * gap_us, next_us)) {
    near.clear();
    next_us = kInfinity;
    for (size_t p = 0; p < search.parts().size(); ++p) {
      if (progress->is_solved[p]) continue;
      const PartSearch& part = *search.parts()[p];
      next_us =
          std::min(next_us, part.FindNear(value_us, is_priced, progress->ways[p], gap_us, &near));
    }
    near.erase(std::remove_if(near.begin(), near.end(),
                              [&](const WantedStage& found) { return is_wanted[found.stage]; }),
               near.end());
    if (near.size() >= count) break;
  }
  const auto nearest_first = [](const WantedStage& a, const WantedStage& b) {
    if (a.above_best_us != b.above_best_us) return a.above_best_us < b.above_best_us;
    return a.stage < b.stage;
  };
  if (near.size() > count) {
    const auto end = near.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(near.begin(), end, near.end(), nearest_first);
    near.erase(end, near.end());
  }
  std::sort(near.begin(), near.end(), nearest_first);
  if (!near.empty()) progress->gap_us = std::max(near.back().above_best_us, 0.0) * kGapGrowth;
  return near;
}

}  // namespace

std::vector<size_t> WantedStages(const IosSearch& search, const std::vector<double>& value_us,
                                 const std::vector<char>& is_priced, size_t at_least,
                                 PricingProgress* progress) {
  const size_t num_stages = search.stages().num_stages();
  if (value_us.size() != num_stages || is_priced.size() != num_stages) {
    throw ScheduleError("there are " + std::to_string(num_stages) + " stages, but " +
                        std::to_string(value_us.size()) + " values and " +
                        std::to_string(is_priced.size()) + " marks; give one of each for a stage");
  }
  std::vector<size_t> wanted;
  std::vector<char> is_wanted(num_stages);
  for (size_t p = 0; p < search.parts().size(); ++p) {
    if (progress->is_solved[p]) continue;
    progress->is_solved[p] = 1;
    for (size_t stage : search.parts()[p]->Solve(value_us, &progress->ways[p])) {
      if (is_priced[stage]) continue;
      progress->is_solved[p] = 0;
      is_wanted[stage] = 1;
      wanted.push_back(stage);
    }
  }
  if (wanted.empty() || wanted.size() >= at_least) return wanted;
  const size_t more = at_least - wanted.size();
  for (const WantedStage& near :
       NearestStages(search, value_us, is_priced, is_wanted, more, progress)) {
    wanted.push_back(near.stage);
  }
  return wanted;
}

IosPricing::IosPricing(const IosSearch& search, StageBook* book)
    : search_(search), book_(book), progress_(search.parts().size()) {}

size_t IosPricing::num_priced() const {
  return static_cast<size_t>(std::count(is_priced_.begin(), is_priced_.end(), 1));
}

void IosPricing::SetBounds(const std::vector<double>& alone_us, const StageBounds& bounds) {
  const size_t num_ops = static_cast<size_t>(search_.graph().num_ops());
  for (const auto* by_op : {&alone_us, &bounds.work_us}) {
    if (by_op->size() == num_ops || (by_op == &bounds.work_us && by_op->empty())) continue;
    throw ScheduleError("there are " + std::to_string(num_ops) + " operators, but latencies of " +
                        std::to_string(by_op->size()) + "; give one for each operator");
  }
  const StageBatch& stages = search_.stages();
  if (bounds.num_streams > 0) {
    bound_us_ = PriceStages(PackStages(stages, bounds.op_us, bounds.num_streams), alone_us);
  } else {
    bound_us_ = PriceStages(stages, alone_us);
  }
  if (bounds.cores > 0) {
    const std::vector<double> work_us =
        WorkOf(stages, bounds.work_us.empty() ? alone_us : bounds.work_us);
    for (size_t i = 0; i < bound_us_.size(); ++i) {
      bound_us_[i] = std::max(bound_us_[i], work_us[i] / bounds.cores);
    }
  }
  tolerance_ = bounds.tolerance;
  slack_us_ = bounds.slack_us;
  value_us_ = bound_us_;
  is_priced_.assign(bound_us_.size(), 0);
  for (size_t i = 0; i < bound_us_.size(); ++i) {
    const int64_t last_group = stages.stage_ends[i] - 1;
    const int64_t end_op = stages.group_ends[last_group];
    const int64_t first_group = i == 0 ? 0 : stages.stage_ends[i - 1];
    const int64_t first_op = first_group == 0 ? 0 : stages.group_ends[first_group - 1];
    if (end_op - first_op != 1) continue;
    value_us_[i] = alone_us[stages.ops[first_op]];
    is_priced_[i] = 1;
  }
  const std::vector<double> known_us = book_->Read(stages);
  for (size_t i = 0; i < known_us.size(); ++i) {
    if (std::isnan(known_us[i])) continue;
    value_us_[i] = known_us[i];
    is_priced_[i] = 1;
  }
  Relax(std::min(1 - tolerance_, bounds.scale));
}

void IosPricing::Give(const std::vector<size_t>& stages, const std::vector<double>& price_us) {
  search_.CheckPrices(stages, price_us);
  book_->Write(search_.stages().Select(stages), price_us);
  for (size_t i = 0; i < stages.size(); ++i) {
    value_us_[stages[i]] = price_us[i];
    is_priced_[stages[i]] = 1;
  }
}

std::vector<size_t> IosPricing::Next(size_t at_least) {
  asked_ = WantedStages(search_, value_us_, is_priced_, at_least, &progress_);
  std::sort(asked_.begin(), asked_.end());
  return asked_;
}

int64_t IosPricing::SetPrices(const std::vector<double>& price_us) {
  search_.CheckPrices(asked_, price_us);
  book_->Write(search_.stages().Select(asked_), price_us);
  int64_t below = 0;
  double scale = scale_;
  for (size_t i = 0; i < asked_.size(); ++i) {
    const size_t stage = asked_[i];
    if (price_us[i] < value_us_[stage]) {
      ++below;
      scale = std::min(scale, price_us[i] / bound_us_[stage] * (1 - tolerance_));
    }
    value_us_[stage] = price_us[i];
    is_priced_[stage] = 1;
  }
  if (below > 0) Relax(scale);
  if (std::find(price_us.begin(), price_us.end(), kInfinity) != price_us.end()) GiveUp();
  return below;
}

void IosPricing::GiveUp() {
  for (size_t i = 0; i < value_us_.size(); ++i) {
    if (is_priced_[i]) continue;
    value_us_[i] = kInfinity;
    is_priced_[i] = 1;
  }
}

void IosPricing::Relax(double scale) {
  scale_ = scale;
  for (size_t i = 0; i < value_us_.size(); ++i) {
    if (!is_priced_[i]) value_us_[i] = std::max(scale_ * bound_us_[i] - slack_us_, 0.0);
  }
  // Entries of `value_us_` have just become smaller, so the old PricingProgress is not valid any
  // more. Start a new one.
  progress_ = PricingProgress(search_.parts().size());
}

}  // namespace tvm_interop

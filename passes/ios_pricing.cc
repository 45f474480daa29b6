#include "passes/ios_pricing.h"

#include <algorithm>
#include <limits>
#include <string>

#include "passes/error.h"

namespace tvm_interop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The next call looks further than this one had to: each asks for more stages, and looking twice
// costs more than looking too far.
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

// The `count` stages, fewer if there are no more, through which the cheapest way of all parts not
// solved costs least more, that least first. Without those that `is_wanted` marks.
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
                        std::to_string(is_priced.size()) + " marks; give one of each");
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

IosPricing::IosPricing(const IosSearch& search)
    : search_(search), progress_(search.parts().size()) {}

std::vector<size_t> IosPricing::SingleOperators() const {
  const StageBatch& stages = search_.stages();
  std::vector<size_t> singles;
  int64_t first_op = 0;
  for (size_t i = 0; i < stages.num_stages(); ++i) {
    const int64_t end_op = stages.group_ends[stages.stage_ends[i] - 1];
    if (end_op - first_op == 1) singles.push_back(i);
    first_op = end_op;
  }
  return singles;
}

void IosPricing::SetBounds(const std::vector<double>& single_us, const StageBounds& bounds) {
  const std::vector<size_t> singles = SingleOperators();
  search_.CheckPrices(singles, single_us);
  if (!bounds.work_us.empty() && bounds.work_us.size() != singles.size()) {
    throw ScheduleError("there are " + std::to_string(singles.size()) + " operators, but work of " +
                        std::to_string(bounds.work_us.size()) + "; give one of each");
  }
  const StageBatch& stages = search_.stages();
  std::vector<double> alone_us(singles.size());
  for (size_t i = 0; i < singles.size(); ++i) {
    const int64_t group = stages.stage_ends[singles[i]] - 1;
    alone_us[stages.ops[stages.group_ends[group] - 1]] = single_us[i];
  }
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
  for (size_t i = 0; i < singles.size(); ++i) {
    value_us_[singles[i]] = single_us[i];
    is_priced_[singles[i]] = 1;
  }
  Relax(1 - tolerance_);
}

void IosPricing::Give(const std::vector<size_t>& stages, const std::vector<double>& price_us) {
  search_.CheckPrices(stages, price_us);
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
  return below;
}

void IosPricing::Relax(double scale) {
  scale_ = scale;
  for (size_t i = 0; i < value_us_.size(); ++i) {
    if (!is_priced_[i]) value_us_[i] = std::max(scale_ * bound_us_[i] - slack_us_, 0.0);
  }
  progress_ = PricingProgress(search_.parts().size());  // values have fallen
}

}  // namespace tvm_interop

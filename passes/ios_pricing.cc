#include "passes/ios_pricing.h"

#include <algorithm>
#include <string>

#include "passes/error.h"
#include "passes/part_search.h"

namespace tvm_interop {
namespace {

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

}  // namespace

std::vector<size_t> WantedStages(const IosSearch& search, const std::vector<double>& value_us,
                                 const std::vector<char>& is_priced, size_t at_least,
                                 std::vector<char>* is_solved) {
  const size_t num_stages = search.stages().num_stages();
  if (value_us.size() != num_stages || is_priced.size() != num_stages) {
    throw ScheduleError("there are " + std::to_string(num_stages) + " stages, but " +
                        std::to_string(value_us.size()) + " values and " +
                        std::to_string(is_priced.size()) + " marks; give one of each");
  }
  std::vector<size_t> wanted;
  std::vector<WantedStage> others;
  for (size_t p = 0; p < is_solved->size(); ++p) {
    if ((*is_solved)[p]) continue;
    const size_t before = wanted.size();
    search.parts()[p]->Want(value_us, is_priced, &wanted, &others);
    (*is_solved)[p] = wanted.size() == before;
  }
  if (!wanted.empty() && wanted.size() < at_least) {
    const size_t more = std::min(others.size(), at_least - wanted.size());
    const auto end = others.begin() + static_cast<std::ptrdiff_t>(more);
    std::partial_sort(others.begin(), end, others.end(),
                      [](const WantedStage& a, const WantedStage& b) {
                        if (a.above_best_us != b.above_best_us) {
                          return a.above_best_us < b.above_best_us;
                        }
                        return a.stage < b.stage;
                      });
    for (auto other = others.begin(); other != end; ++other) wanted.push_back(other->stage);
  }
  return wanted;
}

IosPricing::IosPricing(const IosSearch& search)
    : search_(search), is_solved_(search.parts().size()) {}

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
    const std::vector<double> work_us = WorkOf(stages, alone_us);
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
  asked_ = WantedStages(search_, value_us_, is_priced_, at_least, &is_solved_);
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
  if (below > 0) {
    Relax(scale);
    // What was found with bounds that do not hold is looked at again.
    is_solved_.assign(is_solved_.size(), 0);
  }
  return below;
}

void IosPricing::Relax(double scale) {
  scale_ = scale;
  for (size_t i = 0; i < value_us_.size(); ++i) {
    if (!is_priced_[i]) value_us_[i] = std::max(scale_ * bound_us_[i] - slack_us_, 0.0);
  }
}

}  // namespace tvm_interop

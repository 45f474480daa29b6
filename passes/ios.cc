#include "passes/ios.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "passes/blocks.h"
#include "passes/error.h"
#include "passes/matching.h"
#include "passes/part_search.h"
#include "passes/part_sets.h"

namespace tvm_interop {
namespace {

void CheckOptions(const IosOptions& options) {
  if (options.limits.max_group_ops < 0 || options.limits.max_groups < 0) {
    throw ScheduleError("`max_group_ops` and `max_groups` must be 0 (no limit) or more");
  }
  // A single operator has one transition: with fewer allowed no cut would ever be enough.
  if (options.max_transitions < 1) throw ScheduleError("`max_transitions` must be 1 or more");
}

int WidthOf(const OpGraph& graph, const std::vector<int>& ops) {
  std::vector<BitSet> descendants = PartUpSets<BitSet>(graph, ops);
  for (size_t i = 0; i < ops.size(); ++i) descendants[i].Reset(static_cast<int>(i));
  int width = 0;
  for (int partner : MaximumMatching(descendants, static_cast<int>(ops.size()))) {
    width += partner < 0;
  }
  return width;
}

// A part has at least this many transitions. Any set closed under predecessors is a state, since
// single operators can always be taken off. So each choice of b out of the `width` operators of an
// antichain is what some state ends in, and any 1 to `max_groups` of those b are an ending of it.
double LeastTransitions(int width, int max_groups) {
  // Pascal's triangle: choose[k] is "b choose k" while row b is built.
  std::vector<double> choose(width + 1);
  std::vector<double> endings_of(width + 1);
  choose[0] = 1;
  for (int b = 1; b <= width; ++b) {
    for (int k = b; k > 0; --k) choose[k] += choose[k - 1];
    for (int k = 1; k <= b && (max_groups == 0 || k <= max_groups); ++k) endings_of[b] += choose[k];
  }
  double least = 0;
  for (int b = 1; b <= width; ++b) least += choose[b] * endings_of[b];
  return least;
}

}  // namespace

IosSearch::IosSearch(const OpGraph& graph, const IosOptions& options) : graph_(graph) {
  CheckOptions(options);
  std::vector<std::vector<int>> blocks = FindBlocks(graph);
  stats_.blocks = static_cast<int64_t>(blocks.size());
  for (std::vector<int>& ops : blocks) Search(std::move(ops), options);
}

IosSearch::~IosSearch() = default;

void IosSearch::Search(std::vector<int> ops, const IosOptions& options) {
  const int width = WidthOf(graph_, ops);
  if (LeastTransitions(width, options.limits.max_groups) <= options.max_transitions) {
    std::unique_ptr<PartSearch> part = PartSearch::Make(graph_, ops, options.limits);
    if (part->Enumerate(options.max_transitions, &stages_)) {
      part->CountInto(&stats_);
      parts_.push_back(std::move(part));
      return;
    }
    // Here the failed search gives its memory back, before the halves are searched.
  }
  ++stats_.parts_cut;
  const auto middle = ops.begin() + static_cast<std::ptrdiff_t>(ops.size() / 2);
  Search(std::vector<int>(ops.begin(), middle), options);
  Search(std::vector<int>(middle, ops.end()), options);
}

Schedule IosSearch::Solve(const std::vector<double>& price_us) const {
  CheckPrices(price_us);
  Schedule schedule;
  for (const auto& part : parts_) {
    for (size_t index : part->Solve(price_us)) {
      Stage stage;
      stage.groups = stages_.GroupsOf(index);
      stage.streams.resize(stage.groups.size());
      std::iota(stage.streams.begin(), stage.streams.end(), 0);
      schedule.stages.push_back(std::move(stage));
      schedule.makespan_us += price_us[index];
    }
  }
  return schedule;
}

void IosSearch::CheckPrices(const std::vector<double>& price_us) const {
  if (price_us.size() != stages_.num_stages()) {
    throw ScheduleError("the latency model priced " + std::to_string(price_us.size()) + " of " +
                        std::to_string(stages_.num_stages()) +
                        " stages; it must give one price for each");
  }
  for (size_t i = 0; i < price_us.size(); ++i) {
    if (std::isfinite(price_us[i]) && price_us[i] >= 0) continue;
    std::string ops;
    for (const auto& group : stages_.GroupsOf(i)) {
      for (int op : group) ops += (ops.empty() ? "`" : ", `") + graph_.name(op) + "`";
    }
    throw ScheduleError("the latency model says that the stage of " + ops + " takes " +
                        std::to_string(price_us[i]) +
                        " microseconds; a latency must be finite and not negative");
  }
}

}  // namespace tvm_interop

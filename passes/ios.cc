#include "passes/ios.h"

#include <algorithm>
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
  const std::vector<std::vector<int>> blocks = FindBlocks(graph);
  stats_.blocks = static_cast<int64_t>(blocks.size());
  std::vector<double> least(blocks.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    least[b] = LeastTransitions(WidthOf(graph, blocks[b]), options.limits.max_groups);
  }
  std::vector<size_t> easy_first(blocks.size());
  std::iota(easy_first.begin(), easy_first.end(), 0);
  std::stable_sort(easy_first.begin(), easy_first.end(), [&](size_t a, size_t b) {
    if (least[a] != least[b]) return least[a] < least[b];
    return blocks[a].size() < blocks[b].size();
  });
  std::vector<std::vector<Part>> parts(blocks.size());
  int64_t left = options.max_transitions;
  const auto search = [&](const std::vector<size_t>& some, bool may_cut) {
    std::vector<size_t> too_large;
    for (size_t i = 0; i < some.size(); ++i) {
      const size_t b = some[i];
      const int64_t share = std::max<int64_t>(1, left / static_cast<int64_t>(some.size() - i));
      if (may_cut) {
        Search(blocks[b], options.limits, share, &parts[b]);
      } else if (!SearchWhole(blocks[b], options.limits, share, &parts[b])) {
        too_large.push_back(b);
      }
      for (const Part& part : parts[b]) {
        left -= static_cast<int64_t>(part.search->num_transitions());
      }
      left = std::max<int64_t>(left, 0);
    }
    return too_large;
  };
  // Those that are too large for their share may fit into what the others have left.
  search(search(easy_first, false), true);
  for (std::vector<Part>& of_block : parts) {
    for (Part& part : of_block) {
      part.search->SetFirstStage(stages_.num_stages());
      part.search->CountInto(&stats_);
      stages_.Append(part.stages);
      part.stages = {};
      parts_.push_back(std::move(part.search));
    }
  }
}

IosSearch::~IosSearch() = default;

bool IosSearch::SearchWhole(const std::vector<int>& ops, const EndingLimits& limits,
                            int64_t max_transitions, std::vector<Part>* parts) const {
  const double least = LeastTransitions(WidthOf(graph_, ops), limits.max_groups);
  if (least > static_cast<double>(max_transitions)) return false;
  Part part = {PartSearch::Make(graph_, ops, limits), {}};
  if (!part.search->Enumerate(max_transitions, &part.stages)) return false;
  parts->push_back(std::move(part));
  return true;
}

void IosSearch::Search(const std::vector<int>& ops, const EndingLimits& limits,
                       int64_t max_transitions, std::vector<Part>* parts) {
  if (SearchWhole(ops, limits, max_transitions, parts)) return;
  ++stats_.parts_cut;
  const auto middle = ops.begin() + static_cast<std::ptrdiff_t>(ops.size() / 2);
  const size_t before = parts->size();
  Search(std::vector<int>(ops.begin(), middle), limits, std::max<int64_t>(1, max_transitions / 2),
         parts);
  for (size_t p = before; p < parts->size(); ++p) {
    max_transitions -= static_cast<int64_t>((*parts)[p].search->num_transitions());
  }
  Search(std::vector<int>(middle, ops.end()), limits, std::max<int64_t>(1, max_transitions), parts);
}

Schedule IosSearch::Solve(const std::vector<double>& price_us) const {
  std::vector<size_t> all(stages_.num_stages());
  std::iota(all.begin(), all.end(), 0);
  CheckPrices(all, price_us);
  Schedule schedule;
  for (const auto& part : parts_) {
    CheapestWays ways;
    for (size_t index : part->Solve(price_us, &ways)) {
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

void IosSearch::CheckPrices(const std::vector<size_t>& stages,
                            const std::vector<double>& price_us) const {
  if (price_us.size() != stages.size()) {
    throw ScheduleError("the latency model priced " + std::to_string(price_us.size()) + " of " +
                        std::to_string(stages.size()) + " stages; it must give one price for each");
  }
  for (size_t i = 0; i < price_us.size(); ++i) {
    if (std::isfinite(price_us[i]) && price_us[i] >= 0) continue;
    std::string ops;
    for (const auto& group : stages_.GroupsOf(stages[i])) {
      for (int op : group) ops += (ops.empty() ? "`" : ", `") + graph_.name(op) + "`";
    }
    throw ScheduleError("the latency model says that the stage of " + ops + " takes " +
                        std::to_string(price_us[i]) +
                        " microseconds; a latency must be finite and not negative");
  }
}

}  // namespace tvm_interop

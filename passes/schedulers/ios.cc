#include "passes/schedulers/ios.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "passes/graph/blocks.h"
#include "passes/graph/error.h"
#include "passes/graph/matching.h"
#include "passes/schedulers/part_search.h"
#include "passes/schedulers/part_sets.h"

namespace tvm_interop {
namespace {

void CheckOptions(const IosOptions& options) {
  if (options.limits.max_group_ops < 0 || options.limits.max_groups < 0) {
    throw ScheduleError("`max_group_ops` is " + std::to_string(options.limits.max_group_ops) +
                        " and `max_groups` is " + std::to_string(options.limits.max_groups) +
                        "; both must be 0 (no limit) or more");
  }
  // A part of a single operator has one transition, so a limit of 0 transitions would be too low
  // even for such a part.
  if (options.max_transitions < 1) {
    throw ScheduleError("`max_transitions` is " + std::to_string(options.max_transitions) +
                        "; it must be 1 or more");
  }
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

// The operators sorted by the time at which each can start, with ties in topological order.
std::vector<int> EarlyFirst(const OpGraph& graph, const std::vector<double>& op_us) {
  std::vector<double> start_us(graph.num_ops());
  for (int op : graph.topological_order()) {
    const double end_us = start_us[op] + (op_us.empty() ? 1 : op_us[op]);
    for (int next : graph.successors(op)) start_us[next] = std::max(start_us[next], end_us);
  }
  std::vector<int> order = graph.topological_order();
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return start_us[a] < start_us[b]; });
  return order;
}

// Returns the number of operators before the best cut. The cut is in the middle third of `ops`. The
// operators after the cut read as few operators before the cut as possible. Ties go to the cut
// nearest to the middle.
size_t BestCut(const OpGraph& graph, const std::vector<int>& ops) {
  std::vector<int> place(graph.num_ops(), -1);
  for (size_t i = 0; i < ops.size(); ++i) place[ops[i]] = static_cast<int>(i);
  // read[i] is the number of operators before position i whose output an operator at position i or
  // later reads. change[i] is read[i] - read[i - 1].
  std::vector<int> change(ops.size() + 1);
  for (size_t i = 0; i < ops.size(); ++i) {
    int last = -1;
    for (int next : graph.successors(ops[i])) last = std::max(last, place[next]);
    if (last < 0) continue;
    ++change[i + 1];
    --change[last + 1];
  }
  const size_t n = ops.size();
  size_t best = n / 2;
  int fewest = static_cast<int>(n) + 1, crossing = 0;
  const auto off = [n](size_t i) { return i > n / 2 ? i - n / 2 : n / 2 - i; };
  for (size_t i = 1; i < n; ++i) {
    crossing += change[i];
    if (3 * i < n || 3 * i > 2 * n) continue;
    if (crossing < fewest || (crossing == fewest && off(i) < off(best))) {
      best = i;
      fewest = crossing;
    }
  }
  return best;
}

// A lower bound on the number of transitions of a part. Any set that holds all predecessors of its
// operators is a state, because operators can be removed one at a time. For any b of the `width`
// operators of an antichain, there is a state in which exactly these b operators have no readers.
// Any 1 to `max_groups` of the b operators are an ending of that state.
double LeastTransitions(int width, int max_groups) {
  const std::vector<double> endings_of = LeastEndings(width, max_groups);
  double least = 0, choose = 1;  // "width choose b"
  for (int b = 1; b <= width; ++b) {
    choose = choose * (width - b + 1) / b;
    least += choose * endings_of[b];
  }
  return least;
}

}  // namespace

IosSearch::IosSearch(const OpGraph& graph, const IosOptions& options,
                     const std::vector<double>& op_us)
    : graph_(graph) {
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
  std::vector<int> early_first;
  std::vector<std::vector<Part>> parts(blocks.size());
  int64_t left = options.max_transitions;
  const std::function<bool()> never = [] { return false; };
  const std::function<bool()>& is_over = options.cuts ? never : options.is_over;
  const auto search = [&](const std::vector<size_t>& some, bool may_cut) {
    std::vector<size_t> too_large;
    for (size_t i = 0; i < some.size(); ++i) {
      const size_t b = some[i];
      const int64_t share = std::max<int64_t>(1, left / static_cast<int64_t>(some.size() - i));
      if (may_cut) {
        Search(blocks[b], options.limits, share, early_first, &parts[b]);
      } else if (!SearchWhole(blocks[b], options.limits, share, is_over, &parts[b])) {
        too_large.push_back(b);
      }
      for (const Part& part : parts[b]) {
        left -= static_cast<int64_t>(part.search->num_transitions());
      }
      left = std::max<int64_t>(left, 0);
    }
    return too_large;
  };
  std::vector<size_t> too_large = search(easy_first, false);
  // Blocks that were small enough may have left some of their transitions unused. So the blocks
  // that were too large are searched again with the transitions that are left.
  if (options.cuts) {
    early_first = EarlyFirst(graph, op_us);
    search(too_large, true);
  } else if (!too_large.empty()) {
    too_large = search(too_large, false);
    std::sort(too_large.begin(), too_large.end());
    for (size_t b : too_large) left_out_.push_back(blocks[b]);
  }
  for (std::vector<Part>& of_block : parts) {
    for (Part& part : of_block) Append(std::move(part));
  }
}

IosSearch::IosSearch(const OpGraph& graph, const EndingLimits& limits,
                     const std::vector<std::vector<int>>& stages, size_t first_window,
                     int64_t max_transitions_of_window, const std::function<bool()>& is_over)
    : graph_(graph) {
  CheckOptions({limits, max_transitions_of_window});
  const auto topological = [&](int a, int b) {
    return graph.positions()[a] < graph.positions()[b];
  };
  size_t width = 2;  // how many stages to try first: as many as in the last window
  size_t widest = std::max<size_t>(first_window, 1);
  for (size_t first = 0; first < stages.size();) {
    // Makes a window of as many neighbouring stages as `max_transitions_of_window` transitions
    // allow.
    std::vector<Part> fitting;
    size_t fits = 1;
    bool grows = true;
    for (size_t next = std::min({width, widest, stages.size() - first});
         next > fits && !is_over();) {
      std::vector<int> ops;
      for (size_t i = first; i < first + next; ++i) {
        ops.insert(ops.end(), stages[i].begin(), stages[i].end());
      }
      std::sort(ops.begin(), ops.end(), topological);
      if (SearchWhole(ops, limits, max_transitions_of_window, is_over, &fitting)) {
        fits = next;
        next += grows && first + next < stages.size() && next < widest;
      } else {
        grows = false;
        --next;
      }
    }
    if (fits > 1) {
      Append(std::move(fitting.back()));
    } else {
      std::vector<int> ops = stages[first];
      std::sort(ops.begin(), ops.end(), topological);
      Part part = {PartSearch::MakeFixed(graph, ops), {}};
      part.search->Enumerate(1, [] { return false; }, &part.stages);
      Append(std::move(part));
    }
    width = std::max<size_t>(fits, 2);
    widest = stages.size();
    first += fits;
  }
}

void IosSearch::Append(Part part) {
  part.search->SetFirstStage(stages_.num_stages());
  part.search->CountInto(&stats_);
  stages_.Append(part.stages);
  parts_.push_back(std::move(part.search));
}

IosSearch::~IosSearch() = default;

bool IosSearch::SearchWhole(const std::vector<int>& ops, const EndingLimits& limits,
                            int64_t max_transitions, const std::function<bool()>& is_over,
                            std::vector<Part>* parts) {
  const double least = LeastTransitions(WidthOf(graph_, ops), limits.max_groups);
  if (least > static_cast<double>(max_transitions)) return false;
  Part part = {PartSearch::Make(graph_, ops, limits), {}};
  const bool fits = part.search->Enumerate(max_transitions, is_over, &part.stages);
  transitions_tried_ += static_cast<int64_t>(part.search->num_transitions());
  if (!fits) return false;
  parts->push_back(std::move(part));
  return true;
}

void IosSearch::Search(const std::vector<int>& ops, const EndingLimits& limits,
                       int64_t max_transitions, const std::vector<int>& early_first,
                       std::vector<Part>* parts) {
  if (SearchWhole(ops, limits, max_transitions, [] { return false; }, parts)) return;
  ++stats_.parts_cut;
  std::vector<char> is_here(graph_.num_ops());
  for (int op : ops) is_here[op] = 1;
  std::vector<int> by_start;
  std::copy_if(early_first.begin(), early_first.end(), std::back_inserter(by_start),
               [&](int op) { return is_here[op] != 0; });
  const auto cut = by_start.begin() + static_cast<std::ptrdiff_t>(BestCut(graph_, by_start));
  for (auto op = by_start.begin(); op != cut; ++op) is_here[*op] = 2;
  std::vector<int> first, second;
  for (int op : ops) (is_here[op] == 2 ? first : second).push_back(op);
  const size_t before = parts->size();
  Search(first, limits, std::max<int64_t>(1, max_transitions / 2), early_first, parts);
  for (size_t p = before; p < parts->size(); ++p) {
    max_transitions -= static_cast<int64_t>((*parts)[p].search->num_transitions());
  }
  Search(second, limits, std::max<int64_t>(1, max_transitions), early_first, parts);
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
    if (price_us[i] >= 0) continue;
    std::string ops;
    for (const auto& group : stages_.GroupsOf(stages[i])) {
      for (int op : group) ops += (ops.empty() ? "`" : ", `") + graph_.name(op) + "`";
    }
    throw LatencyError("the latency model says that the stage of " + ops + " takes " +
                       std::to_string(price_us[i]) +
                       " microseconds; a latency must be finite and not negative");
  }
}

}  // namespace tvm_interop

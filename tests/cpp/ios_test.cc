#include "passes/schedulers/ios.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "passes/graph/error.h"
#include "passes/schedulers/ios_pricing.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

namespace {

using tvm_interop::IosOptions;
using tvm_interop::IosPricing;
using tvm_interop::IosSearch;
using tvm_interop::OpGraph;
using tvm_interop::PricingProgress;
using tvm_interop::Schedule;
using tvm_interop::StageBook;
using tvm_interop::WantedStages;

constexpr double kFar = 1e9;  // A latency that is larger than that of any schedule.

std::vector<double> RandomUs(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> op_us;
  for (int i = 0; i < n; ++i) op_us.push_back(1 + random() % 30);
  return op_us;
}

double Cost(const Schedule& schedule, const std::vector<double>& op_us) {
  double total = 0;
  for (const auto& stage : schedule.stages) {
    double longest = 0;
    for (const auto& group : stage.groups) {
      double sum = 0;
      for (int op : group) sum += op_us[op];
      longest = std::max(longest, sum);
    }
    total += longest;
  }
  return total;
}

Schedule Solve(const OpGraph& graph, const IosOptions& options, const std::vector<double>& op_us) {
  const IosSearch search(graph, options);
  Schedule schedule = search.Solve(PriceStages(search.stages(), op_us));
  ValidateStages(graph, schedule.stages);
  return schedule;
}

// The graphs have no cuts, and their bit sets take two, three, five and seventeen words. So each
// type of set is used.
TEST_CASE(BlocksOfAnySizeAreSearched) {
  for (int n : {70, 140, 300, 1030}) {
    // A chain of n - 4 operators beside a chain of 4 has no cuts and few states.
    std::vector<tvm_interop::Edge> edges;
    for (int i = 1; i < n; ++i) {
      if (i != 4) edges.emplace_back(i - 1, i);
    }
    const OpGraph graph = MakeGraph(n, edges);
    IosOptions options;
    options.limits = {1, 2, false};
    const IosSearch search(graph, options);
    CHECK_EQ(search.stats().parts_cut, 0);
    CHECK_EQ(search.stats().states, int64_t{n - 3} * 5 - 1);
    const std::vector<double> op_us(n, 1.0);
    CHECK_EQ(Cost(search.Solve(PriceStages(search.stages(), op_us)), op_us), n - 4.0);
  }
}

TEST_CASE(ABlockWithTooManyTransitionsIsCut) {
  const OpGraph graph = MakeGraph(40, {});
  IosOptions options;
  options.max_transitions = 1000;
  const IosSearch search(graph, options);
  CHECK(search.stats().parts_cut > 0);
  CHECK_EQ(search.stats().blocks, 1);
  const std::vector<double> op_us = RandomUs(40, 1);
  const Schedule schedule = Solve(graph, options, op_us);
  size_t ops = 0;
  for (const auto& stage : schedule.stages) {
    for (const auto& group : stage.groups) ops += group.size();
  }
  CHECK_EQ(ops, 40u);
  options.max_transitions = 1;
  CHECK_EQ(Solve(graph, options, op_us).stages.size(), 40u);
  CHECK_EQ(IosSearch(graph, options).stats().parts_cut, 39);
}

TEST_CASE(TheLimitIsExact) {
  int tested = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    // A lower bound of the number of transitions follows from the graph's width. It is exact for
    // the graphs without edges.
    const OpGraph graph = RandomGraph(2 + seed % 7, 0.1 * (seed % 4), seed);
    IosOptions options;
    options.limits.max_groups = static_cast<int>(seed % 5);
    const auto stats = IosSearch(graph, options).stats();
    if (stats.blocks != 1) continue;
    options.max_transitions = stats.transitions;
    CHECK_EQ(IosSearch(graph, options).stats().parts_cut, 0);
    if (stats.transitions > 1) {
      options.max_transitions = stats.transitions - 1;
      CHECK(IosSearch(graph, options).stats().parts_cut > 0);
    }
    ++tested;
  }
  CHECK(tested > 50);
}

// The graph has five blocks. A block has eight independent operators, and an operator that reads
// all of them.
TEST_CASE(TheLimitIsForAllBlocksTogether) {
  std::vector<tvm_interop::Edge> edges;
  for (int block = 0; block < 5; ++block) {
    for (int i = 0; i < 8; ++i) {
      if (block > 0) edges.emplace_back(9 * block - 1, 9 * block + i);
      edges.emplace_back(9 * block + i, 9 * block + 8);
    }
  }
  const OpGraph graph = MakeGraph(45, edges);
  IosOptions options;
  const auto whole = IosSearch(graph, options).stats();
  CHECK_EQ(whole.blocks, 5);
  CHECK_EQ(whole.parts_cut, 0);
  options.max_transitions = whole.transitions;
  CHECK_EQ(IosSearch(graph, options).stats().parts_cut, 0);
  for (int64_t limit : {int64_t{100}, int64_t{1000}, whole.transitions - 1}) {
    options.max_transitions = limit;
    const auto stats = IosSearch(graph, options).stats();
    CHECK(stats.transitions <= limit);
    CHECK(stats.parts_cut > 0);
  }
}

TEST_CASE(RefusesBadPrices) {
  const OpGraph graph = MakeGraph(2, {{0, 1}});
  const IosSearch search(graph, {});
  CHECK_EQ(search.stages().num_stages(), 2u);
  CHECK_THROWS(search.Solve({1.0}), tvm_interop::PassError);
  CHECK_THROWS(search.Solve({1.0, -1.0}), tvm_interop::PassError);
  CHECK_THROWS(search.Solve({1.0, std::stod("nan")}), tvm_interop::PassError);
}

// The graph has four independent operators. A stage takes as long as its longest operator, so one
// stage with all operators is best.
TEST_CASE(WantsTheUnpricedStagesOfTheBestWayFirst) {
  const OpGraph graph = MakeGraph(4, {});
  const IosSearch search(graph, {});
  const std::vector<double> op_us = {4, 3, 2, 1};
  const std::vector<double> value_us = PriceStages(search.stages(), op_us);
  const size_t num_stages = value_us.size();
  CHECK_EQ(num_stages, 15u);
  std::vector<char> is_priced(num_stages);
  size_t all_at_once = num_stages;
  for (size_t i = 0; i < num_stages; ++i) {
    const size_t num_ops = search.stages().GroupsOf(i).size();
    is_priced[i] = num_ops == 1;
    if (num_ops == 4) all_at_once = i;
  }
  PricingProgress progress(1);
  CHECK(WantedStages(search, value_us, is_priced, 0, &progress) ==
        std::vector<size_t>{all_at_once});
  CHECK_EQ(progress.is_solved[0], 0);
  const std::vector<size_t> more = WantedStages(search, value_us, is_priced, 3, &progress);
  CHECK_EQ(more.size(), 3u);
  CHECK_EQ(more[0], all_at_once);
  // The second best sequence of stages has a stage of three operators, and one stage of the
  // cheapest operator.
  CHECK_EQ(search.stages().GroupsOf(more[1]).size(), 3u);
  is_priced[all_at_once] = 1;
  CHECK(WantedStages(search, value_us, is_priced, 3, &progress).empty());
  CHECK_EQ(progress.is_solved[0], 1);
  CHECK_THROWS(WantedStages(search, {1.0}, is_priced, 0, &progress), tvm_interop::PassError);
}

// Returns, for each stage, the latency of the fastest schedule that contains the stage. No other
// stage of that schedule may have an operator of the given stage.
std::vector<double> CostsThrough(const IosSearch& search, const std::vector<double>& value_us) {
  const size_t num_stages = value_us.size();
  std::vector<std::set<int64_t>> ops(num_stages);
  for (size_t i = 0; i < num_stages; ++i) {
    for (const auto& group : search.stages().GroupsOf(i)) ops[i].insert(group.begin(), group.end());
  }
  std::vector<double> through_us;
  for (size_t i = 0; i < num_stages; ++i) {
    std::vector<double> only_us = value_us;
    for (size_t j = 0; j < num_stages; ++j) {
      const auto is_shared = [&](int64_t op) { return ops[i].count(op) > 0; };
      if (j != i && std::any_of(ops[j].begin(), ops[j].end(), is_shared)) only_us[j] = kFar;
    }
    through_us.push_back(search.Solve(only_us).makespan_us);
  }
  return through_us;
}

// Returns the result of `WantedStages` for a graph of one block, computed by the definition.
std::set<size_t> WantedByDefinition(const IosSearch& search, const std::vector<double>& value_us,
                                    const std::vector<char>& is_priced,
                                    const std::vector<size_t>& on_best, size_t at_least) {
  std::vector<double> priced_us = value_us;
  for (size_t i = 0; i < value_us.size(); ++i) {
    if (!is_priced[i]) priced_us[i] = kFar;
  }
  const double best_priced_us = search.Solve(priced_us).makespan_us;
  const std::vector<double> through_us = CostsThrough(search, value_us);
  std::set<size_t> wanted(on_best.begin(), on_best.end());
  std::vector<std::pair<double, size_t>> others;
  for (size_t i = 0; i < value_us.size(); ++i) {
    if (is_priced[i] || wanted.count(i) > 0 || through_us[i] > best_priced_us) continue;
    others.emplace_back(through_us[i], i);
  }
  std::sort(others.begin(), others.end());
  for (const auto& other : others) {
    if (wanted.size() < at_least) wanted.insert(other.second);
  }
  return wanted;
}

// The prices of stages (their latencies) become known one after the other, and no price is below
// the bound of its stage. Each call of `WantedStages` continues from the progress of the last call.
TEST_CASE(WantsWhatTheDefinitionSaysWhileValuesRise) {
  int rounds = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    const OpGraph graph = RandomGraph(7, 0.1 * (seed % 3), seed);
    const IosSearch search(graph, {});
    if (search.parts().size() != 1) continue;
    // The latencies are whole numbers, so all sums are exact, and many sums are equal.
    std::vector<double> value_us = PriceStages(search.stages(), RandomUs(7, seed));
    std::vector<char> is_priced(value_us.size());
    for (size_t i = 0; i < value_us.size(); ++i) {
      const auto groups = search.stages().GroupsOf(i);
      is_priced[i] = groups.size() == 1 && groups[0].size() == 1;
    }
    std::mt19937 random(seed);
    PricingProgress progress(1);
    for (;;) {
      PricingProgress none(1);
      const std::vector<size_t> on_best = WantedStages(search, value_us, is_priced, 0, &none);
      const size_t at_least = 1 + random() % 12;
      const std::vector<size_t> wanted =
          WantedStages(search, value_us, is_priced, at_least, &progress);
      CHECK_EQ(progress.is_solved[0], on_best.empty());
      if (on_best.empty()) break;
      CHECK(std::set<size_t>(wanted.begin(), wanted.end()) ==
            WantedByDefinition(search, value_us, is_priced, on_best, at_least));
      for (size_t stage : wanted) {
        value_us[stage] += random() % 3 * (random() % 10);
        is_priced[stage] = 1;
      }
      ++rounds;
    }
  }
  CHECK(rounds > 100);
}

// If the price of a stage is below its bound, the bounds of all stages are lowered. After that, a
// stage that looked too slow may be part of the best schedule.
TEST_CASE(LoweredBoundsBringStagesBack) {
  int lowered = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    const OpGraph graph = RandomGraph(9, 0.2, seed);
    const IosSearch search(graph, {});
    const std::vector<double> op_us = RandomUs(9, seed);
    std::vector<double> price_us = PriceStages(search.stages(), op_us);
    StageBook book;
    IosPricing pricing(search, &book);
    pricing.SetBounds(op_us, {});
    // Give each stage of several operators a price that is at least half of its bound.
    std::mt19937 random(seed);
    for (size_t i = 0; i < price_us.size(); ++i) {
      if (search.stages().Select({i}).ops.size() > 1) price_us[i] *= 0.5 * (1 + random() % 4);
    }
    for (std::vector<size_t> next; !(next = pricing.Next(2)).empty();) {
      std::vector<double> next_us;
      for (size_t stage : next) next_us.push_back(price_us[stage]);
      pricing.SetPrices(next_us);
    }
    if (pricing.scale() > 0.5) continue;  // No price as low as half of its bound was seen.
    ++lowered;
    const Schedule full = search.Solve(price_us);
    const Schedule made = search.Solve(pricing.value_us());
    CHECK_EQ(made.makespan_us, full.makespan_us);
    CHECK_EQ(made.stages.size(), full.stages.size());
    for (size_t i = 0; i < made.stages.size(); ++i) {
      CHECK(made.stages[i].groups == full.stages[i].groups);
    }
  }
  CHECK(lowered > 20);
}

TEST_CASE(MoreFreedomNeverCostsMore) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const OpGraph graph = RandomGraph(10, 0.25, seed);
    const std::vector<double> op_us = RandomUs(10, seed);
    IosOptions paper, complete, unlimited;
    paper.limits.single_root = true;
    unlimited.limits = {0, 0, false};
    const double best = Cost(Solve(graph, unlimited, op_us), op_us);
    const double middle = Cost(Solve(graph, complete, op_us), op_us);
    CHECK(best <= middle);
    CHECK(middle <= Cost(Solve(graph, paper, op_us), op_us));
  }
}

}  // namespace

#include "passes/ios.h"

#include <map>

#include "passes/error.h"
#include "passes/ios_pricing.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

namespace {

using tvm_interop::IosOptions;
using tvm_interop::IosSearch;
using tvm_interop::OpGraph;
using tvm_interop::PricingProgress;
using tvm_interop::Schedule;
using tvm_interop::WantedStages;

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

// Graphs without cuts of their own, as wide as two, three, five and seventeen words of bits: all
// the set types.
TEST_CASE(BlocksOfAnySizeAreSearched) {
  for (int n : {70, 140, 300, 1030}) {
    // A chain of n - 4 beside a chain of 4: never cut, and few states.
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
    // Without edges, too: there the bound by the width that spares a search is the exact number.
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

// Five times eight independent operators and the one that reads them all.
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

// Four operators side by side; stages take their longest operator, so all at once is best.
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
  // Next come stages of three: only the cheapest operator is left over.
  CHECK_EQ(search.stages().GroupsOf(more[1]).size(), 3u);
  is_priced[all_at_once] = 1;
  CHECK(WantedStages(search, value_us, is_priced, 3, &progress).empty());
  CHECK_EQ(progress.is_solved[0], 1);
  CHECK_THROWS(WantedStages(search, {1.0}, is_priced, 0, &progress), tvm_interop::PassError);
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

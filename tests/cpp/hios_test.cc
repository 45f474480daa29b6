// Tests HIOS's algorithms step by step. The example agrees with every number that the paper's text
// gives for Fig. 4. The paper counts GPUs and operators from 1, and this file counts from 0.
#include <algorithm>
#include <functional>
#include <limits>

#include "passes/schedulers/heft.h"
#include "passes/schedulers/hios_lp.h"
#include "passes/schedulers/hios_mr.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

namespace {

using namespace tvm_interop;

OpGraph Figure4() {
  return MakeGraph(8, {{0, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 5}, {4, 5}, {4, 6}, {5, 7}, {6, 7}});
}
const std::vector<double> kFigure4Us = {3, 4, 2, 1, 1, 4, 2, 3};
const std::vector<double> kFigure4EdgeUs = {1, 2, 1, 1, 2, 1, 1, 1, 2};

TEST_CASE(ranks_follow_the_priorities) {
  const OpGraph graph = Figure4();
  const GpuCosts costs(graph, kFigure4Us, kFigure4EdgeUs);
  for (int op = 0; op < 8; ++op) CHECK_EQ(costs.rank(op), op);
}

TEST_CASE(equal_priorities_keep_the_topological_order) {
  // No operator and no edge takes any time, so all priorities are 0.
  const OpGraph graph = MakeGraph(4, {{3, 2}, {2, 1}, {1, 0}});
  const GpuCosts costs(graph, {0, 0, 0, 0}, {0, 0, 0});
  for (int op = 0; op < 4; ++op) CHECK_EQ(costs.rank(op), 3 - op);
}

TEST_CASE(longest_paths_and_where_they_go) {
  const OpGraph graph = Figure4();
  const GpuCosts costs(graph, kFigure4Us, kFigure4EdgeUs);
  PathSearch paths(costs);
  ListOnGpus mapping(costs, 2);
  const double no_limit = ListOnGpus::kNoLower;

  const LongestPath first = paths.TakeLongest();
  CHECK_EQ(first.ranks, (std::vector<int>{0, 1, 3, 5, 7}));
  CHECK_EQ(first.us, 20);
  CHECK_EQ(mapping.Try(first.ranks, 0, no_limit), 15);
  CHECK_EQ(mapping.Try(first.ranks, 1, no_limit), 15);
  mapping.Map(first.ranks, 0);

  // The path v3 v5 v7 is longer, but it is not valid, because its inner operator v5 has an edge to
  // v6.
  const LongestPath second = paths.TakeLongest();
  CHECK_EQ(second.ranks, (std::vector<int>{2, 4}));
  CHECK_EQ(second.us, 7);
  CHECK_EQ(mapping.Try(second.ranks, 0, no_limit), 18);
  CHECK_EQ(mapping.Try(second.ranks, 1, no_limit), 16);
  CHECK_EQ(mapping.Try(second.ranks, 1, 16), no_limit);
  mapping.Map(second.ranks, 1);
  const std::vector<double> finish = {3, 7, 7, 8, 8, 13};
  for (int rank = 0; rank < 6; ++rank) CHECK_EQ(mapping.finish_us(rank), finish[rank]);
  CHECK_EQ(mapping.finish_us(7), 16);

  const LongestPath third = paths.TakeLongest();
  CHECK_EQ(third.ranks, (std::vector<int>{6}));
  CHECK_EQ(third.us, 5);
  CHECK_EQ(mapping.Try(third.ranks, 0, no_limit), 18);
  CHECK_EQ(mapping.Try(third.ranks, 1, no_limit), 16);
  CHECK(paths.done());
  CHECK_EQ(MapLongestPaths(costs, 2), (GpuOrders{{0, 1, 3, 5, 7}, {2, 4, 6}}));
}

TEST_CASE(the_table_of_the_recurrence) {
  const OpGraph graph = Figure4();
  const GpuCosts costs(graph, kFigure4Us, kFigure4EdgeUs);
  Recurrence table(costs, 2);
  const double never = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<double>> finish = {{3, never}, {7, 8},   {5, 7},  {8, 9},
                                                   {6, 8},     {13, 13}, {8, 10}, {16, 16}};
  const std::vector<std::vector<int>> before = {{-1, -1}, {0, 0}, {1, 0}, {1, 0},
                                                {1, 0},   {1, 0}, {1, 0}, {1, 0}};
  for (int rank = 0; rank < 8; ++rank) {
    for (int gpu = 0; gpu < 2; ++gpu) {
      CHECK_EQ(table.finish_us(rank, gpu), finish[rank][gpu]);
      CHECK_EQ(table.before(rank, gpu), before[rank][gpu]);
    }
  }
  CHECK_EQ(table.Best(), (std::vector<int>{0, 0, 1, 0, 1, 0, 1, 0}));
}

TEST_CASE(a_mapping_that_grows_is_priced_as_if_from_scratch) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const OpGraph graph = RandomGraph(30, 0.15, seed);
    std::mt19937 random(seed);
    std::vector<double> op_us(30), edge_us(graph.edges().size());
    for (double& us : op_us) us = random() % 9;
    for (double& us : edge_us) us = random() % 5;
    const GpuCosts costs(graph, op_us, edge_us);
    ListOnGpus growing(costs, 3);
    PathSearch paths(costs);
    std::vector<int> gpu_of(30, -1);
    while (!paths.done()) {
      const std::vector<int> path = paths.TakeLongest().ranks;
      const int gpu = static_cast<int>(random() % 3);
      for (int rank : path) gpu_of[rank] = gpu;
      // Compute the latency by the definition.
      std::vector<double> free(3), finish(30);
      double latest = 0;
      for (int rank = 0; rank < 30; ++rank) {
        if (gpu_of[rank] < 0) continue;
        double start = free[gpu_of[rank]];
        for (const Arc& arc : costs.sources(rank)) {
          if (gpu_of[arc.rank] < 0) continue;
          start =
              std::max(start, finish[arc.rank] + (gpu_of[arc.rank] == gpu_of[rank] ? 0 : arc.us));
        }
        latest = std::max(latest, free[gpu_of[rank]] = finish[rank] = start + costs.us(rank));
      }
      CHECK_EQ(growing.Try(path, gpu, ListOnGpus::kNoLower), latest);
      growing.Map(path, gpu);
    }
  }
}

// Returns the length of the longest valid path, found by trying every path. `TakeLongest` must find
// the same length.
double LongestByTrying(const OpGraph& graph, const GpuCosts& costs,
                       const std::vector<char>& taken) {
  double longest = 0;
  const auto edge_in = [&](int rank) {
    double us = 0;
    for (const Arc& arc : costs.sources(rank)) us = std::max(us, taken[arc.rank] ? arc.us : 0);
    return us;
  };
  const auto edge_out = [&](int rank) {
    double us = 0;
    for (const Arc& arc : costs.readers(rank)) us = std::max(us, taken[arc.rank] ? arc.us : 0);
    return us;
  };
  const auto is_clean = [&](int rank) {
    for (const Arc& arc : costs.sources(rank)) {
      if (taken[arc.rank]) return false;
    }
    for (const Arc& arc : costs.readers(rank)) {
      if (taken[arc.rank]) return false;
    }
    return true;
  };
  std::function<void(int, double, bool)> walk = [&](int rank, double us, bool is_first) {
    longest = std::max(longest, us + edge_out(rank));
    if (!is_first && !is_clean(rank)) return;
    for (const Arc& arc : costs.readers(rank)) {
      if (!taken[arc.rank]) walk(arc.rank, us + arc.us + costs.us(arc.rank), false);
    }
  };
  for (int rank = 0; rank < graph.num_ops(); ++rank) {
    if (!taken[rank]) walk(rank, edge_in(rank) + costs.us(rank), true);
  }
  return longest;
}

TEST_CASE(paths_are_the_longest_there_are) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const OpGraph graph = RandomGraph(14, 0.25, seed);
    std::mt19937 random(seed);
    std::vector<double> op_us(14), edge_us(graph.edges().size());
    for (double& us : op_us) us = random() % 4;
    for (double& us : edge_us) us = random() % 4;
    const GpuCosts costs(graph, op_us, edge_us);
    PathSearch paths(costs);
    std::vector<char> taken(14);
    while (!paths.done()) {
      const double expected = LongestByTrying(graph, costs, taken);
      const LongestPath path = paths.TakeLongest();
      CHECK_EQ(path.us, expected);
      for (int rank : path.ranks) taken[rank] = 1;
    }
  }
}

TEST_CASE(heft_fills_gaps) {
  // Operators 0 and 1 run on different GPUs. Operator 2 waits for a copy, and operator 3 fits into
  // the gap before operator 2.
  const OpGraph graph = MakeGraph(4, {{0, 2}, {1, 2}});
  const GpuCosts costs(graph, {5, 5, 5, 2}, {4, 4});
  CHECK_EQ(ScheduleHeft(costs, 2, false), (GpuOrders{{0, 3, 2}, {1}}));
}

}  // namespace

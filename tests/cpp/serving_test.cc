// Tests the serving engine and TOP's rule, on workloads that are small enough to check by hand.
#include "passes/simulate/serving.h"

#include <cmath>
#include <limits>

#include "passes/graph/error.h"
#include "passes/simulate/combined.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

namespace {

using namespace tvm_interop;

constexpr double kInf = std::numeric_limits<double>::infinity();
const ServingDevice kTwoCores = {{2, kInf, 0}, 0, 0, 0};

std::vector<std::vector<int>> OneStream(const OpGraph& graph) {
  return {graph.topological_order()};
}

ServedProgram Chain(int num_ops, double us) {
  std::vector<Edge> edges;
  for (int op = 1; op < num_ops; ++op) edges.emplace_back(op - 1, op);
  const OpGraph graph = MakeGraph(num_ops, edges);
  return {graph, OneStream(graph), std::vector<ServedOp>(num_ops, {us, 1, 0, 0, 0, 0}), false};
}

// Returns a program of one stage with independent operators, each on a stream of its own.
ServedProgram Parts(const std::vector<double>& us) {
  const OpGraph graph = MakeGraph(static_cast<int>(us.size()), {});
  std::vector<std::vector<int>> streams;
  std::vector<ServedOp> ops;
  for (int op = 0; op < graph.num_ops(); ++op) {
    streams.push_back({op});
    ops.push_back({us[op], 1, 0, 0, 0, op});
  }
  return {graph, streams, ops, true};
}

TEST_CASE(instances_share_the_cores) {
  const ServedProgram chain = Chain(3, 10);
  ServingEngine engine(kTwoCores);
  for (int i = 0; i < 4; ++i) CHECK_EQ(engine.Start(chain, 1, false), i);
  for (int i = 0; i < 4; ++i) {
    CHECK_EQ(engine.Advance(kInf), i);
    CHECK(std::abs(engine.now_us() - 60) < 1e-9);
  }
  CHECK_EQ(engine.Advance(kInf), -1);
  CHECK(std::abs(engine.busy_us() - 60) < 1e-9);
  CHECK_EQ(engine.Advance(100), -1);
  CHECK_EQ(engine.now_us(), 100);
  // An instance that runs alone takes as long as `ServedProgram::Alone` says, and no other instance
  // may start.
  CHECK(engine.Start(chain, 1, true) >= 0);
  CHECK_THROWS(engine.Start(chain, 1, false), PassError);
  CHECK(engine.Advance(kInf) >= 0);
  CHECK_EQ(engine.now_us(), 130);
}

TEST_CASE(absent_parts_are_left_out) {
  const ServedProgram parts = Parts({10, 30, 20});
  const ServingDevice device = {{kInf, kInf, 0}, 0, 5, 0};
  CHECK_EQ(parts.Alone(0b111, device).us, 35);
  CHECK_EQ(parts.Alone(0b101, device).us, 25);
  ServingEngine engine(device);
  CHECK_THROWS(engine.Start(parts, 0, false), PassError);
  CHECK_THROWS(engine.Start(parts, 0b1000, false), PassError);
}

TEST_CASE(programs_of_no_use_are_refused) {
  const OpGraph pair = MakeGraph(2, {{0, 1}});
  const std::vector<std::vector<int>> streams = {{0, 1}};
  CHECK_THROWS(ServedProgram(pair, streams, {{1, 1, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 1}}, false),
               PassError);
  CHECK_THROWS(ServedProgram(pair, streams, {{1, 1, 0, 0, 1, 0}, {1, 1, 0, 0, 0, 0}}, true),
               PassError);
  CHECK_THROWS(ServedProgram(pair, {{1, 0}}, {{1, 1, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0}}, true),
               PassError);
}

TEST_CASE(the_fullest_combined_block_runs_first) {
  // One model has two blocks, which form one combined block. Requests arrive at 0, 1 and 2 us.
  const ServedProgram both = Parts({10, 10});
  Combination combination = {{&both}, {{0, 0}}, {{0, 1}}, {0}, 64};
  const ArrivalList arrivals = {{0, 1, 2}, {0, 0, 0}, {}};
  CombinedRun run = SimulateCombined(kTwoCores, combination, arrivals, 1000);
  // The requests form a pipeline. From 0 to 10 us the first request runs. From 10 to 20 us the
  // first and the second request run, and so on.
  const std::vector<double> ends = {20, 30, 40};
  for (int i = 0; i < 3; ++i) CHECK_EQ(run.requests[i].finished_us, ends[i]);
  CHECK_EQ(run.rounds, 4);
  CHECK_EQ(run.requests[2].dequeued_us, 2);

  // If there is room for only one request before each block, the first request must end before the
  // second starts.
  combination.buffer = 1;
  run = SimulateCombined(kTwoCores, combination, arrivals, 1000);
  CHECK_EQ(run.requests[2].dequeued_us, 20);
  // At most one request leaves the queue every 50 us.
  combination.interval_us = {50};
  run = SimulateCombined(kTwoCores, combination, arrivals, 1000);
  CHECK_EQ(run.requests[1].dequeued_us, 50);
  CHECK_EQ(run.requests[2].dequeued_us, 100);
  CHECK_EQ(run.requests[2].finished_us, 120);
  // A second and a third request follow the first request. The simulation ends before the third
  // request has ended.
  run = SimulateCombined(kTwoCores, combination, {{0}, {0}, {{0, 0, 1}}}, 115);
  CHECK_EQ(run.requests.size(), 3u);
  CHECK_EQ(run.requests[1].arrived_us, 21);
  CHECK_EQ(run.requests[1].dequeued_us, 50);
  CHECK(std::isnan(run.requests.back().finished_us));
  CHECK_THROWS(SimulateCombined(kTwoCores, combination, {{0}, {1}, {}}, 1), PassError);
}

TEST_CASE(windows_go_on_where_the_window_before_ended) {
  const ServedProgram both = Parts({10, 10});
  const Combination combination = {{&both}, {{0, 0}}, {{0, 1}}, {0}, 64};
  CombinedServing serving(kTwoCores, {});
  serving.Decide(combination);
  serving.Add({0, 1}, {0, 0});
  // At 5 us the first request runs in the first block. At 15 us it runs in the second block. The
  // second request left its queue at 1 us, and runs in the first block at 15 us.
  CombinedWindow window = serving.Run(15, {0.5, 5, 14});
  CHECK_EQ(window.rounds, 2);
  CHECK_EQ(window.busy_us, 10);  // 10 us of one core, then 5 us of two cores.
  const std::vector<int64_t> observed = {0, 1, 0, 0, 2, 0, 0, 1, 1};
  CHECK(window.observed == observed);
  CHECK_EQ(window.requests.size(), 2u);
  CHECK(std::isnan(window.requests[0].finished_us));
  // By a later decision, at most one request leaves the queue in 50 us. The combined block that is
  // running at that time still ends by the old decision.
  const ServedProgram first = Parts({10}), second = Parts({10});
  serving.Decide({{&first, &second}, {{0, 1}}, {{0, 0}}, {50}, 64});
  serving.Add({16, 17}, {0, 0});
  window = serving.Run(60, {55});
  CHECK_EQ(window.requests[0].finished_us, 20);
  CHECK_EQ(window.requests[1].finished_us, 30);
  CHECK_EQ(window.requests[2].dequeued_us, 51);
  CHECK(window.observed == std::vector<int64_t>({1, 1, 0}));
  CHECK_EQ(serving.requests().size(), 4u);
  CHECK_THROWS(serving.Add({3}, {0}), PassError);
  CHECK_THROWS(serving.Decide({{&both}, {{0, 0}, {0}}, {{0, 1}, {0}}, {0, 0}, 64}), PassError);
}

}  // namespace

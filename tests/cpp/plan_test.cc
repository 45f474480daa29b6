#include <set>

#include "passes/check_plan.h"
#include "passes/error.h"
#include "passes/memory_plan.h"
#include "passes/sync_plan.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

namespace {

using namespace tvm_interop;
using Lists = std::vector<std::vector<int>>;

Lists Joined(const OpGraph& graph, const Lists& streams) {
  Lists successors = Successors(graph);
  for (const auto& stream : streams) {
    for (size_t i = 1; i < stream.size(); ++i) successors[stream[i - 1]].push_back(stream[i]);
  }
  return successors;
}

// The edges between streams that no other path replaces, by depth-first search.
std::set<Edge> BruteReduction(const OpGraph& graph, const Lists& streams) {
  const Lists successors = Joined(graph, streams);
  std::vector<int> stream_of(graph.num_ops());
  for (size_t s = 0; s < streams.size(); ++s) {
    for (int op : streams[s]) stream_of[op] = static_cast<int>(s);
  }
  std::set<Edge> kept;
  for (const Edge& edge : graph.edges()) {
    if (stream_of[edge.first] == stream_of[edge.second]) continue;
    bool has_detour = false;
    for (int next : successors[edge.first]) {
      has_detour = has_detour || (next != edge.second && HasPath(successors, next, edge.second));
    }
    if (!has_detour) kept.insert(edge);
  }
  return kept;
}

TEST_CASE(WaitsAreTheTransitiveReduction) {
  size_t waits_seen = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const OpGraph graph = RandomGraph(2 + seed % 25, 0.05 + 0.04 * (seed % 8), seed);
    const Lists streams = RandomStreams(graph, 1 + seed % 5, seed);
    const Lists waits = PlanSync(graph, streams, {});
    std::set<Edge> planned;
    for (int op = 0; op < graph.num_ops(); ++op) {
      for (int source : waits[op]) CHECK(planned.emplace(source, op).second);
    }
    CHECK(planned == BruteReduction(graph, streams));
    waits_seen += planned.size();
    CheckSync(graph, streams, waits, {});
  }
  CHECK(waits_seen > 1000);
}

TEST_CASE(ADroppedWaitIsCaught) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const OpGraph graph = RandomGraph(15, 0.2, seed);
    const Lists streams = RandomStreams(graph, 3, seed);
    const Lists waits = PlanSync(graph, streams, {});
    for (int op = 0; op < graph.num_ops(); ++op) {
      for (size_t i = 0; i < waits[op].size(); ++i) {
        Lists damaged = waits;
        damaged[op].erase(damaged[op].begin() + static_cast<std::ptrdiff_t>(i));
        CHECK_THROWS(CheckSync(graph, streams, damaged, {}), PassError);
      }
    }
  }
}

TEST_CASE(ExtraEdgesAreWaitedFor) {
  const OpGraph graph = MakeGraph(3, {});
  const Lists streams = {{0}, {1}, {2}};
  CHECK_EQ(PlanSync(graph, streams, {}), Lists({{}, {}, {}}));
  const std::vector<Edge> extra = {{0, 1}, {1, 2}, {0, 2}};
  CHECK_EQ(PlanSync(graph, streams, extra), Lists({{}, {0}, {1}}));
  CHECK_THROWS(CheckSync(graph, streams, {{}, {0}, {}}, extra), PassError);
}

TEST_CASE(ADeadlockIsCaught) {
  const OpGraph graph = MakeGraph(4, {{0, 3}, {2, 1}});
  const Lists streams = {{1, 0}, {3, 2}};
  CHECK_THROWS(PlanSync(graph, streams, {}), PassError);
  CHECK_THROWS(CheckSync(graph, streams, {{}, {2}, {}, {0}}, {}), PassError);
  CHECK_THROWS(PlanSync(graph, {{0, 1}, {2}}, {}), PassError);
  CHECK_THROWS(PlanSync(graph, {{0, 1, 2, 3, 3}}, {}), PassError);
}

std::vector<Buffer> OutputsOf(const OpGraph& graph, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Buffer> buffers;
  for (int op = 0; op < graph.num_ops(); ++op) {
    buffers.push_back({static_cast<int64_t>(random() % 5 * 100), {op}, graph.successors(op)});
  }
  return buffers;
}

TEST_CASE(MemoryPlansPassTheChecker) {
  bool has_shared = false;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const OpGraph graph = RandomGraph(2 + seed % 30, 0.15, seed);
    const Lists streams = RandomStreams(graph, 1 + seed % 4, seed);
    const Lists waits = PlanSync(graph, streams, {});
    const std::vector<Buffer> buffers = OutputsOf(graph, seed);
    const MemoryPlan plan = PlanMemory(graph, streams, waits, buffers, 64);
    CheckMemory(graph, streams, waits, buffers, 64, plan);
    int64_t sum = 0;
    for (const Buffer& buffer : buffers) sum += buffer.nbytes;
    has_shared = has_shared || plan.arena_bytes < sum;
  }
  CHECK(has_shared);
}

TEST_CASE(AChainNeedsTwoBuffersAndNeverOne) {
  const OpGraph graph = MakeGraph(5, {{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  const Lists streams = {{0, 1, 2, 3, 4}};
  std::vector<Buffer> buffers;
  for (int op = 0; op < 5; ++op) buffers.push_back({64, {op}, graph.successors(op)});
  const MemoryPlan plan = PlanMemory(graph, streams, Lists(5), buffers, 64);
  CHECK_EQ(plan.offsets, std::vector<int64_t>({0, 64, 0, 64, 0}));
  CHECK_EQ(plan.arena_bytes, 128);
  MemoryPlan in_place = plan;
  in_place.offsets[1] = 0;
  CHECK_THROWS(CheckMemory(graph, streams, Lists(5), buffers, 64, in_place), PassError);
}

TEST_CASE(StreamsThatDoNotWaitShareNothing) {
  const OpGraph graph = MakeGraph(4, {{0, 1}, {2, 3}});
  const Lists streams = {{0, 1}, {2, 3}};
  std::vector<Buffer> buffers;
  for (int op = 0; op < 4; ++op) buffers.push_back({64, {op}, graph.successors(op)});
  CHECK_EQ(PlanMemory(graph, streams, Lists(4), buffers, 64).arena_bytes, 256);
  // With a wait the second stream comes after the first: both use the same 128 bytes.
  CHECK_EQ(PlanMemory(graph, streams, {{}, {}, {1}, {}}, buffers, 64).arena_bytes, 128);
}

TEST_CASE(ABufferIsFreeOnlyOnceAllItsProducersCouldHaveBegun) {
  // 0 and 1 write a part each of what 2 reads; 3 and 4 do so for 5.
  const OpGraph graph = MakeGraph(6, {{0, 2}, {1, 2}, {3, 5}, {4, 5}});
  const std::vector<Buffer> buffers = {{64, {0, 1}, {2}}, {64, {3, 4}, {5}}};
  const Lists streams = {{0, 2, 3, 5}, {1, 4}};
  const Lists parts_wait = {{}, {}, {1}, {}, {2}, {4}};
  CHECK_EQ(PlanMemory(graph, streams, parts_wait, buffers, 64).arena_bytes, 64);
  // 4 may begin while 2 still reads: it writes a part of the second buffer, too.
  const Lists one_part_waits = {{}, {}, {1}, {}, {}, {4}};
  CHECK_EQ(PlanMemory(graph, streams, one_part_waits, buffers, 64).arena_bytes, 128);
  CHECK_THROWS(CheckMemory(graph, streams, one_part_waits, buffers, 64, {{0, 0}, 64}), PassError);
  CHECK_THROWS(PlanMemory(graph, streams, parts_wait, {{64, {}, {2}}}, 64), PassError);
}

TEST_CASE(ACheckerSeesAnArenaThatIsTooSmallAndAnOffsetThatIsOff) {
  const OpGraph graph = MakeGraph(1, {});
  const std::vector<Buffer> buffers = {{100, {0}, {}}};
  CheckMemory(graph, {{0}}, Lists(1), buffers, 64, {{64}, 164});
  CHECK_THROWS(CheckMemory(graph, {{0}}, Lists(1), buffers, 64, {{64}, 163}), PassError);
  CHECK_THROWS(CheckMemory(graph, {{0}}, Lists(1), buffers, 64, {{32}, 164}), PassError);
  CHECK_THROWS(CheckMemory(graph, {{0}}, Lists(1), buffers, 64, {{-64}, 164}), PassError);
  CHECK_THROWS(PlanMemory(graph, {{0}}, Lists(1), {{-1, {0}, {}}}, 64), PassError);
  CHECK_THROWS(PlanMemory(graph, {{0}}, Lists(1), {{1, {1}, {}}}, 64), PassError);
}

}  // namespace

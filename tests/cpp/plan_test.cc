#include <set>

#include "passes/check/stream_program.h"
#include "passes/graph/error.h"
#include "passes/plan/memory_plan.h"
#include "passes/plan/sync_plan.h"
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

// Returns the edges between streams that no other path replaces, found by depth-first search.
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

// A program for the checker. The checker numbers operators in its own way, so this class translates
// the numbers.
class Program {
 public:
  Program(const Lists& streams, const Lists& waits) : number_(waits.size()) {
    for (size_t s = 0; s < streams.size(); ++s) {
      for (int op : streams[s]) {
        number_[op] = static_cast<int>(program_.stream_of.size());
        program_.stream_of.push_back(static_cast<int>(s));
      }
    }
    program_.waits.resize(waits.size());
    program_.takes_no_overlap.assign(waits.size(), 1);
    for (size_t op = 0; op < waits.size(); ++op) {
      for (int source : waits[op]) program_.waits[number_[op]].push_back(number_[source]);
    }
  }
  void Touch(int op, tvm_interop::check::Access access) {
    access.op = number_[op];
    program_.accesses.push_back(access);
  }
  bool IsSafe() const {
    const tvm_interop::check::Verdict verdict = tvm_interop::check::CheckStreamProgram(program_);
    return verdict.circle.empty() && verdict.faults.empty();
  }

 private:
  std::vector<int> number_;
  tvm_interop::check::StreamProgram program_;
};

// Whether every operator runs after the operators that it reads from, and after the sources of its
// extra edges.
bool OrdersAll(const OpGraph& graph, const Lists& streams, const Lists& waits,
               const std::vector<Edge>& extra_edges) {
  Program program(streams, waits);
  std::vector<Edge> edges = graph.edges();
  edges.insert(edges.end(), extra_edges.begin(), extra_edges.end());
  for (int op = 0; op < graph.num_ops(); ++op) program.Touch(op, {0, op, 0, 1, true});
  for (const auto& [from, to] : edges) program.Touch(to, {0, from, 0, 1, false});
  return program.IsSafe();
}

// Whether every user of a buffer reads the data of the buffer's producers. Each producer writes one
// share of the buffer.
bool KeepsApart(const Lists& streams, const Lists& waits, const std::vector<Buffer>& buffers,
                const std::vector<int64_t>& offsets) {
  Program program(streams, waits);
  for (size_t b = 0; b < buffers.size(); ++b) {
    const int64_t end = offsets[b] + buffers[b].nbytes;
    const int tensor = static_cast<int>(b);
    const int shares = static_cast<int>(buffers[b].producers.size());
    for (int i = 0; i < shares; ++i) {
      program.Touch(buffers[b].producers[i], {0, 0, offsets[b], end, true, tensor, i, shares});
    }
    for (int user : buffers[b].users) {
      program.Touch(user, {0, 0, offsets[b], end, false, tensor});
    }
  }
  return program.IsSafe();
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
    CHECK(OrdersAll(graph, streams, waits, {}));
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
        CHECK(!OrdersAll(graph, streams, damaged, {}));
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
  CHECK(!OrdersAll(graph, streams, {{}, {0}, {}}, extra));
}

TEST_CASE(ADeadlockIsCaught) {
  const OpGraph graph = MakeGraph(4, {{0, 3}, {2, 1}});
  const Lists streams = {{1, 0}, {3, 2}};
  CHECK_THROWS(PlanSync(graph, streams, {}), PassError);
  CHECK(!OrdersAll(graph, streams, {{}, {2}, {}, {0}}, {}));
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
    CHECK(KeepsApart(streams, waits, buffers, plan.offsets));
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
  CHECK(!KeepsApart(streams, Lists(5), buffers, in_place.offsets));
}

TEST_CASE(StreamsThatDoNotWaitShareNothing) {
  const OpGraph graph = MakeGraph(4, {{0, 1}, {2, 3}});
  const Lists streams = {{0, 1}, {2, 3}};
  std::vector<Buffer> buffers;
  for (int op = 0; op < 4; ++op) buffers.push_back({64, {op}, graph.successors(op)});
  CHECK_EQ(PlanMemory(graph, streams, Lists(4), buffers, 64).arena_bytes, 256);
  // With one wait, the second stream starts after the first has ended, so both can use the same 128
  // bytes.
  CHECK_EQ(PlanMemory(graph, streams, {{}, {}, {1}, {}}, buffers, 64).arena_bytes, 128);
}

TEST_CASE(ABufferIsFreeOnlyOnceAllItsProducersCouldHaveBegun) {
  // Operators 0 and 1 each write a part of the first buffer, which operator 2 reads. Operators 3
  // and 4 each write a part of the second buffer, which operator 5 reads.
  const OpGraph graph = MakeGraph(6, {{0, 2}, {1, 2}, {3, 5}, {4, 5}});
  const std::vector<Buffer> buffers = {{64, {0, 1}, {2}}, {64, {3, 4}, {5}}};
  const Lists streams = {{0, 2, 3, 5}, {1, 4}};
  const Lists parts_wait = {{}, {}, {1}, {}, {2}, {4}};
  CHECK_EQ(PlanMemory(graph, streams, parts_wait, buffers, 64).arena_bytes, 64);
  // Here operator 4 does not wait for operator 2. So operator 4 may write its part of the second
  // buffer while operator 2 still reads the first buffer, and the buffers must not overlap.
  const Lists one_part_waits = {{}, {}, {1}, {}, {}, {4}};
  CHECK_EQ(PlanMemory(graph, streams, one_part_waits, buffers, 64).arena_bytes, 128);
  CHECK(!KeepsApart(streams, one_part_waits, buffers, {0, 0}));
  CHECK_THROWS(PlanMemory(graph, streams, parts_wait, {{64, {}, {2}}}, 64), PassError);
}

TEST_CASE(BuffersThatAreNoneAreRefused) {
  const OpGraph graph = MakeGraph(1, {});
  CHECK_THROWS(PlanMemory(graph, {{0}}, Lists(1), {{-1, {0}, {}}}, 64), PassError);
  CHECK_THROWS(PlanMemory(graph, {{0}}, Lists(1), {{1, {1}, {}}}, 64), PassError);
}

}  // namespace

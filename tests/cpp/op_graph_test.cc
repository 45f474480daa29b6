#include "passes/graph/op_graph.h"

#include "passes/graph/error.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

namespace {

using tvm_interop::OpGraph;
using tvm_interop::PassError;
using Ids = std::vector<int>;

std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const PassError& error) {
    return std::string(error.kind()) + ": " + error.what();
  }
  return "";
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Returns the size of the largest antichain, found by looking at every subset.
int BruteWidth(const OpGraph& graph) {
  const auto successors = Successors(graph);
  std::vector<unsigned> comparable(graph.num_ops());
  for (int u = 0; u < graph.num_ops(); ++u) {
    for (int v = 0; v < graph.num_ops(); ++v) {
      if (HasPath(successors, u, v) || HasPath(successors, v, u)) comparable[u] |= 1u << v;
    }
  }
  int width = 0;
  for (unsigned set = 0; set < (1u << graph.num_ops()); ++set) {
    bool is_antichain = true;
    for (int u = 0; u < graph.num_ops(); ++u) {
      if ((set >> u & 1) && (set & comparable[u])) is_antichain = false;
    }
    if (is_antichain) width = std::max(width, __builtin_popcount(set));
  }
  return width;
}

TEST_CASE(KeepsRepeatedEdgesButNotRepeatedNeighbours) {
  const OpGraph graph = MakeGraph(3, {{2, 0}, {2, 0}, {0, 1}});
  CHECK_EQ(graph.edges().size(), 3u);
  CHECK_EQ(graph.successors(2), Ids({0}));
  CHECK_EQ(graph.predecessors(1), Ids({0}));
  CHECK_EQ(graph.topological_order(), Ids({2, 0, 1}));
}

TEST_CASE(TakesTheLowestReadyIdFirst) {
  CHECK_EQ(MakeGraph(5, {{3, 0}, {1, 4}}).topological_order(), Ids({1, 2, 3, 0, 4}));
}

TEST_CASE(NamesTheCycle) {
  const std::string message =
      MessageOf([] { MakeGraph(5, {{0, 1}, {1, 2}, {2, 3}, {3, 1}, {3, 4}}); });
  CHECK(Contains(message, "GraphError"));
  CHECK(Contains(message, "`op1` -> `op2` -> `op3` -> `op1`"));
}

TEST_CASE(RefusesWhatIsNoGraph) {
  CHECK(Contains(MessageOf([] { MakeGraph(2, {{1, 1}}); }), "`op1` has an edge to itself"));
  CHECK(Contains(MessageOf([] { MakeGraph(2, {{0, 2}}); }), "names operator 2"));
  CHECK(Contains(MessageOf([] { MakeGraph(2, {{-1, 0}}); }), "names operator -1"));
  CHECK(Contains(MessageOf([] { OpGraph({"a", "b", "a"}, {}); }), "both named `a`"));
  CHECK(Contains(MessageOf([] { OpGraph({"a", ""}, {}); }), "operator 1 has an empty name"));
}

TEST_CASE(ReachesAsDepthFirstSearchDoes) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    // The sizes of the graphs lie around 64, the number of bits in a word.
    const int n = 60 + static_cast<int>(seed) % 10;
    const OpGraph graph = RandomGraph(n, 0.04, seed);
    const auto successors = Successors(graph);
    for (int u = 0; u < n; ++u) {
      for (int v = 0; v < n; ++v) {
        CHECK_EQ(graph.Reaches(u, v), HasPath(successors, u, v));
        CHECK_EQ(graph.ancestors(v).Test(u), graph.Reaches(u, v));
      }
    }
  }
}

TEST_CASE(WidthIsTheLargestAntichain) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const OpGraph graph = RandomGraph(1 + seed % 12, 0.1 + 0.05 * (seed % 9), seed);
    CHECK_EQ(graph.Width(), BruteWidth(graph));
  }
  CHECK_EQ(MakeGraph(0, {}).Width(), 0);
  CHECK_EQ(MakeGraph(100, {}).Width(), 100);
}

}  // namespace

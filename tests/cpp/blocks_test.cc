#include "passes/graph/blocks.h"

#include <set>

#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

namespace {

using tvm_interop::FindBlocks;
using tvm_interop::OpGraph;
using Blocks = std::vector<std::vector<int>>;

// Finds the blocks by their definition. A topological order is cut where each operator before the
// cut reaches each operator after the cut.
Blocks BruteBlocks(const OpGraph& graph) {
  const auto successors = Successors(graph);
  const auto& order = graph.topological_order();
  Blocks components;
  std::vector<int> component;
  for (size_t k = 0; k < order.size(); ++k) {
    component.push_back(order[k]);
    bool is_cut = true;
    for (size_t i = 0; i <= k; ++i) {
      for (size_t j = k + 1; j < order.size(); ++j) {
        is_cut = is_cut && HasPath(successors, order[i], order[j]);
      }
    }
    if (!is_cut) continue;
    components.push_back(component);
    component.clear();
  }
  Blocks blocks;
  for (size_t i = 0; i < components.size(); ++i) {
    if (i > 0 && components[i].size() == 1 && components[i - 1].size() > 1) {
      blocks.back().push_back(components[i][0]);
    } else {
      blocks.push_back(components[i]);
    }
  }
  return blocks;
}

TEST_CASE(AChainIsABlockAnOperator) {
  CHECK_EQ(FindBlocks(MakeGraph(3, {{0, 1}, {1, 2}})), Blocks({{0}, {1}, {2}}));
}

TEST_CASE(AnExitJoinsItsBlock) {
  // A stem, two branches, the concatenation of the branches, and a head.
  CHECK_EQ(FindBlocks(MakeGraph(5, {{0, 1}, {0, 2}, {1, 3}, {2, 3}, {3, 4}})),
           Blocks({{0}, {1, 2, 3}, {4}}));
}

TEST_CASE(TwoLayersThatAreFullyJoinedAreTwoBlocks) {
  CHECK_EQ(FindBlocks(MakeGraph(4, {{0, 2}, {0, 3}, {1, 2}, {1, 3}})), Blocks({{0, 1}, {2, 3}}));
}

TEST_CASE(ASkipIsNoCut) {
  CHECK_EQ(FindBlocks(MakeGraph(4, {{0, 1}, {1, 2}, {0, 2}, {2, 3}})),
           Blocks({{0}, {1}, {2}, {3}}));
  CHECK_EQ(FindBlocks(MakeGraph(4, {{0, 1}, {0, 2}, {1, 3}})).size(), 2u);
}

TEST_CASE(BlocksAreAsDefined) {
  int with_cuts = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    const OpGraph graph = RandomGraph(1 + seed % 14, 0.2 + 0.07 * (seed % 10), seed);
    const Blocks blocks = FindBlocks(graph);
    CHECK_EQ(blocks, BruteBlocks(graph));
    with_cuts += blocks.size() > 1;
  }
  CHECK(with_cuts > 50);
}

TEST_CASE(AMillionOperatorsInARow) {
  // The graph is so large that a matrix with one bit for each pair of operators would not fit into
  // memory.
  std::vector<tvm_interop::Edge> edges;
  for (int op = 1; op < 1000000; ++op) edges.emplace_back(op - 1, op);
  CHECK_EQ(FindBlocks(MakeGraph(1000000, std::move(edges))).size(), 1000000u);
}

TEST_CASE(AnEmptyGraphHasNone) { CHECK(FindBlocks(MakeGraph(0, {})).empty()); }

}  // namespace

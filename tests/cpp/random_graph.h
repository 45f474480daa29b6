// Makes random graphs, and small graphs with given edges, for the tests.
#ifndef TESTS_CPP_RANDOM_GRAPH_H_
#define TESTS_CPP_RANDOM_GRAPH_H_

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "passes/graph/op_graph.h"

inline std::vector<std::string> Names(int n) {
  std::vector<std::string> names;
  for (int i = 0; i < n; ++i) names.push_back("op" + std::to_string(i));
  return names;
}

inline tvm_interop::OpGraph MakeGraph(int n, std::vector<tvm_interop::Edge> edges) {
  return tvm_interop::OpGraph(Names(n), std::move(edges));
}

// Returns a random graph in which each pair of operators has an edge with probability `density`.
// The edges follow a random order of the operators, so the ids are not a topological order.
inline tvm_interop::OpGraph RandomGraph(int n, double density, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<tvm_interop::Edge> edges;
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      if (random() % 1000 < density * 1000) edges.emplace_back(order[i], order[j]);
    }
  }
  return MakeGraph(n, edges);
}

// Whether a path of at least one edge leads from `from` to `to`, by depth-first search.
inline bool HasPath(const std::vector<std::vector<int>>& successors, int from, int to) {
  std::vector<char> seen(successors.size());
  std::vector<int> open = {from};
  while (!open.empty()) {
    const int op = open.back();
    open.pop_back();
    for (int next : successors[op]) {
      if (next == to) return true;
      if (!seen[next]) open.push_back(next);
      seen[next] = 1;
    }
  }
  return false;
}

inline std::vector<std::vector<int>> Successors(const tvm_interop::OpGraph& graph) {
  std::vector<std::vector<int>> successors;
  for (int op = 0; op < graph.num_ops(); ++op) successors.push_back(graph.successors(op));
  return successors;
}

// Returns the operators in a topological order, each on a random stream.
inline std::vector<std::vector<int>> RandomStreams(const tvm_interop::OpGraph& graph,
                                                   int num_streams, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<int>> streams(num_streams);
  for (int op : graph.topological_order()) streams[random() % num_streams].push_back(op);
  return streams;
}

#endif  // TESTS_CPP_RANDOM_GRAPH_H_

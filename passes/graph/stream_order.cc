#include "passes/graph/stream_order.h"

#include <string>

#include "passes/graph/error.h"
#include "passes/graph/topological.h"

namespace tvm_interop {
namespace {

void CheckOp(const OpGraph& graph, int op, const char* where) {
  if (op >= 0 && op < graph.num_ops()) return;
  throw PlanError(std::string(where) + " names operator " + std::to_string(op) +
                  ", but the graph has " + std::to_string(graph.num_ops()) +
                  " operators, numbered from 0");
}

}  // namespace

std::vector<StreamPlace> StreamPlaces(const OpGraph& graph,
                                      const std::vector<std::vector<int>>& streams) {
  std::vector<StreamPlace> places(graph.num_ops());
  for (size_t s = 0; s < streams.size(); ++s) {
    for (size_t i = 0; i < streams[s].size(); ++i) {
      const int op = streams[s][i];
      CheckOp(graph, op, "a stream");
      if (places[op].stream >= 0) {
        throw PlanError("operator `" + graph.name(op) +
                        "` is on the streams twice; an operator runs once");
      }
      places[op] = {static_cast<int>(s), static_cast<int>(i)};
    }
  }
  for (int op = 0; op < graph.num_ops(); ++op) {
    if (places[op].stream < 0) {
      throw PlanError("operator `" + graph.name(op) + "` is on no stream; every operator must run");
    }
  }
  return places;
}

std::vector<std::vector<int>> OrderSuccessors(const OpGraph& graph,
                                              const std::vector<std::vector<int>>& streams,
                                              const std::vector<Edge>& edges) {
  std::vector<std::vector<int>> successors(graph.num_ops());
  for (const auto& stream : streams) {
    for (size_t i = 1; i < stream.size(); ++i) successors[stream[i - 1]].push_back(stream[i]);
  }
  for (const Edge& edge : edges) {
    CheckOp(graph, edge.first, "an edge");
    CheckOp(graph, edge.second, "an edge");
    successors[edge.first].push_back(edge.second);
  }
  return successors;
}

std::vector<int> OrderOrThrow(const OpGraph& graph,
                              const std::vector<std::vector<int>>& successors) {
  std::vector<int> order = TopologicalOrder(successors);
  if (order.size() == successors.size()) return order;
  std::string path;
  const std::vector<int> cycle = FindCycle(successors);
  for (int op : cycle) path += "`" + graph.name(op) + "` -> ";
  throw PlanError("deadlock: " + path + "`" + graph.name(cycle.front()) +
                  "` wait for each other in a circle; change the streams' order or the waits");
}

std::vector<Edge> WaitEdges(const OpGraph& graph, const std::vector<std::vector<int>>& waits) {
  if (static_cast<int>(waits.size()) != graph.num_ops()) {
    throw PlanError("there are waits for " + std::to_string(waits.size()) +
                    " operators, but the graph has " + std::to_string(graph.num_ops()) +
                    "; give a list for each, empty where there is nothing to wait for");
  }
  std::vector<Edge> edges;
  for (size_t op = 0; op < waits.size(); ++op) {
    for (int source : waits[op]) {
      CheckOp(graph, source, "a wait");
      edges.emplace_back(source, static_cast<int>(op));
    }
  }
  return edges;
}

}  // namespace tvm_interop

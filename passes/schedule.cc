#include "passes/schedule.h"

#include <string>

#include "passes/error.h"
#include "passes/topological.h"

namespace tvm_interop {
namespace {

std::string Quoted(const OpGraph& graph, int op) { return "`" + graph.name(op) + "`"; }

void CheckOp(const OpGraph& graph, int op) {
  if (op >= 0 && op < graph.num_ops()) return;
  throw ScheduleError("the schedule holds operator " + std::to_string(op) + ", but the graph has " +
                      std::to_string(graph.num_ops()) + " operators, numbered from 0");
}

[[noreturn]] void FailTwice(const OpGraph& graph, int op) {
  throw ScheduleError("operator " + Quoted(graph, op) +
                      " is in the schedule twice; an operator runs once");
}

[[noreturn]] void FailMissing(const OpGraph& graph, int op) {
  throw ScheduleError("operator " + Quoted(graph, op) +
                      " is not in the schedule; every operator must run");
}

}  // namespace

void ValidateStages(const OpGraph& graph, const std::vector<Stage>& stages) {
  struct Place {
    int stage = -1, group = -1, index = -1;
  };
  std::vector<Place> places(graph.num_ops());
  for (size_t s = 0; s < stages.size(); ++s) {
    const Stage& stage = stages[s];
    if (stage.groups.size() != stage.streams.size()) {
      throw ScheduleError("stage " + std::to_string(s) + " has " +
                          std::to_string(stage.groups.size()) + " groups but names " +
                          std::to_string(stage.streams.size()) +
                          " streams; name the stream of each group");
    }
    for (size_t g = 0; g < stage.groups.size(); ++g) {
      if (stage.streams[g] < 0) {
        throw ScheduleError("stage " + std::to_string(s) + " puts a group on stream " +
                            std::to_string(stage.streams[g]) + "; streams are numbered from 0");
      }
      for (size_t i = 0; i < stage.groups[g].size(); ++i) {
        const int op = stage.groups[g][i];
        CheckOp(graph, op);
        if (places[op].stage >= 0) FailTwice(graph, op);
        places[op] = {static_cast<int>(s), static_cast<int>(g), static_cast<int>(i)};
      }
    }
  }
  for (int op = 0; op < graph.num_ops(); ++op) {
    if (places[op].stage < 0) FailMissing(graph, op);
  }
  for (int op : graph.topological_order()) {
    for (int source : graph.predecessors(op)) {
      const Place& from = places[source];
      const Place& to = places[op];
      if (from.stage < to.stage) continue;
      if (from.stage == to.stage && from.group == to.group && from.index < to.index) continue;
      const std::string reads = Quoted(graph, op) + " reads the output of " + Quoted(graph, source);
      if (from.stage > to.stage) {
        throw ScheduleError(reads + " but is in stage " + std::to_string(to.stage) +
                            ", before it in stage " + std::to_string(from.stage));
      }
      if (from.group != to.group) {
        throw ScheduleError(reads + " but both are in stage " + std::to_string(to.stage) +
                            ", in different groups; put them into one group or two stages");
      }
      throw ScheduleError(reads + " but comes before it in their group of stage " +
                          std::to_string(to.stage));
    }
  }
}

void ValidateStreams(const OpGraph& graph, const std::vector<std::vector<int>>& streams) {
  std::vector<char> seen(graph.num_ops());
  std::vector<std::vector<int>> order(graph.num_ops());
  for (const auto& stream : streams) {
    for (size_t i = 0; i < stream.size(); ++i) {
      CheckOp(graph, stream[i]);
      if (seen[stream[i]]) FailTwice(graph, stream[i]);
      seen[stream[i]] = 1;
      if (i > 0) order[stream[i - 1]].push_back(stream[i]);
    }
  }
  for (int op = 0; op < graph.num_ops(); ++op) {
    if (!seen[op]) FailMissing(graph, op);
    order[op].insert(order[op].end(), graph.successors(op).begin(), graph.successors(op).end());
  }
  if (TopologicalOrder(order).size() == order.size()) return;
  std::string path;
  const std::vector<int> cycle = FindCycle(order);
  for (int op : cycle) path += Quoted(graph, op) + " -> ";
  throw ScheduleError("the streams' order contradicts the dependencies: " + path +
                      Quoted(graph, cycle.front()) + " wait for each other in a circle");
}

}  // namespace tvm_interop

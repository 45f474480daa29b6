#include "passes/schedulers/schedule.h"

#include <map>
#include <string>

#include "passes/graph/error.h"
#include "passes/graph/topological.h"

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

struct Place {
  int stage = -1, group = -1, index = -1;
};

// The stage, the group and the position in the group of each operator. Throws ScheduleError unless
// the stages hold each operator exactly once.
std::vector<Place> PlacesOf(const OpGraph& graph, const std::vector<Stage>& stages) {
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
  return places;
}

std::string Reads(const OpGraph& graph, int op, int source) {
  return Quoted(graph, op) + " reads the output of " + Quoted(graph, source);
}

// Throws ScheduleError if an operator depends on an operator of another group of its stage, or on a
// later operator of its own group.
void CheckWithinStages(const OpGraph& graph, const std::vector<Place>& places) {
  for (int op : graph.topological_order()) {
    for (int source : graph.predecessors(op)) {
      const Place& from = places[source];
      const Place& to = places[op];
      if (from.stage != to.stage) continue;
      if (from.group != to.group) {
        throw ScheduleError(Reads(graph, op, source) + " but both are in stage " +
                            std::to_string(to.stage) +
                            ", in different groups; put them into one group or two stages");
      }
      if (from.index > to.index) {
        throw ScheduleError(Reads(graph, op, source) + " but comes before it in their group of " +
                            "stage " + std::to_string(to.stage) + "; swap the two");
      }
    }
  }
}

// For each stage, the stages that wait for it.
std::vector<std::vector<int>> Followers(const OpGraph& graph, const std::vector<Stage>& stages,
                                        const std::vector<Place>& places) {
  std::vector<std::vector<int>> followers(stages.size());
  std::map<int, int> last;  // by device
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto [before, is_first] = last.emplace(stages[s].device, static_cast<int>(s));
    if (is_first) continue;
    followers[before->second].push_back(static_cast<int>(s));
    before->second = static_cast<int>(s);
  }
  for (int op = 0; op < graph.num_ops(); ++op) {
    for (int next : graph.successors(op)) {
      if (places[op].stage != places[next].stage) {
        followers[places[op].stage].push_back(places[next].stage);
      }
    }
  }
  return followers;
}

std::string OnGpu(const std::vector<Stage>& stages, int s) {
  return "stage " + std::to_string(s) + " on GPU " + std::to_string(stages[s].device);
}

// Says why stage `after` waits for stage `before`, and names the operators. For error messages.
std::string WhyBehind(const OpGraph& graph, const std::vector<Stage>& stages,
                      const std::vector<Place>& places, int before, int after) {
  for (const auto& group : stages[after].groups) {
    for (int op : group) {
      for (int source : graph.predecessors(op)) {
        if (places[source].stage != before) continue;
        return Quoted(graph, op) + " (" + OnGpu(stages, after) + ") reads the output of " +
               Quoted(graph, source) + " (" + OnGpu(stages, before) + ")";
      }
    }
  }
  const auto first_op = [&](int s) {
    for (const auto& group : stages[s].groups) {
      if (!group.empty()) return Quoted(graph, group.front());
    }
    return std::string("no operator");
  };
  return OnGpu(stages, after) + ", of " + first_op(after) + ", is behind stage " +
         std::to_string(before) + ", of " + first_op(before);
}

void CheckBetweenStages(const OpGraph& graph, const std::vector<Stage>& stages,
                        const std::vector<Place>& places) {
  for (int op : graph.topological_order()) {
    for (int source : graph.predecessors(op)) {
      if (places[source].stage <= places[op].stage) continue;
      // If the two stages are on different GPUs, their order in `stages` does not matter.
      // LaunchOrder checks that stages do not wait for each other in a circle.
      if (stages[places[source].stage].device != stages[places[op].stage].device) continue;
      throw ScheduleError(Reads(graph, op, source) + " but is in stage " +
                          std::to_string(places[op].stage) + ", and " + Quoted(graph, source) +
                          " is in the later stage " + std::to_string(places[source].stage) +
                          "; swap the stages, or move one of the operators");
    }
  }
}

}  // namespace

void ValidateStages(const OpGraph& graph, const std::vector<Stage>& stages) {
  LaunchOrder(graph, stages);
}

std::vector<int> LaunchOrder(const OpGraph& graph, const std::vector<Stage>& stages) {
  const std::vector<Place> places = PlacesOf(graph, stages);
  CheckWithinStages(graph, places);
  CheckBetweenStages(graph, stages, places);
  const auto followers = Followers(graph, stages, places);
  std::vector<int> order = TopologicalOrder(followers);
  if (order.size() == stages.size()) return order;
  const std::vector<int> cycle = FindCycle(followers);
  std::string reasons;
  for (size_t i = 0; i < cycle.size(); ++i) {
    const int next = cycle[(i + 1) % cycle.size()];
    reasons += (i > 0 ? "; " : "") + WhyBehind(graph, stages, places, cycle[i], next);
  }
  throw ScheduleError("stages on different GPUs wait for each other in a circle: " + reasons +
                      "; split one of these stages or change the order on a GPU");
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
                      Quoted(graph, cycle.front()) +
                      " wait for each other in a circle; change the order on one of the streams");
}

}  // namespace tvm_interop

#include "passes/simulate/served_program.h"

#include <algorithm>
#include <limits>
#include <string>

#include "passes/graph/error.h"
#include "passes/schedulers/schedule.h"
#include "passes/simulate/serving.h"

namespace tvm_interop {

ServedProgram::ServedProgram(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                             const std::vector<ServedOp>& ops, bool has_barriers)
    : ops_(ops),
      predecessors_(graph.num_ops()),
      streams_(streams),
      launch_order_(graph.topological_order()),
      has_barriers_(has_barriers) {
  ValidateStreams(graph, streams);
  for (int op = 0; op < graph.num_ops(); ++op) {
    if (ops[op].part < 0 || ops[op].part > 63) {
      throw ScheduleError("operator `" + graph.name(op) + "` belongs to part " +
                          std::to_string(ops[op].part) + "; a program has parts 0 to 63");
    }
    num_parts_ = std::max(num_parts_, ops[op].part + 1);
    predecessors_[op] = graph.predecessors(op);
    for (int source : predecessors_[op]) {
      if (ops[source].part != ops[op].part) {
        throw ScheduleError(
            "operator `" + graph.name(op) + "` reads `" + graph.name(source) +
            "`, which belongs to another part of the program; put both into one part");
      }
      if (ops[source].segment > ops[op].segment) {
        throw ScheduleError(
            "operator `" + graph.name(op) + "` reads `" + graph.name(source) +
            "`, which runs in a later stage; run an operator after the operators that "
            "it reads");
      }
    }
  }
  for (const auto& stream : streams) {
    for (size_t i = 1; i < stream.size(); ++i) {
      if (ops[stream[i - 1]].segment <= ops[stream[i]].segment) continue;
      throw ScheduleError("operator `" + graph.name(stream[i]) +
                          "` comes after an operator of a later stage on its stream; sort each "
                          "stream by stage");
    }
  }
  std::stable_sort(launch_order_.begin(), launch_order_.end(),
                   [&](int a, int b) { return ops_[a].segment < ops_[b].segment; });
}

const ServedProgram::Variant& ServedProgram::Of(uint64_t present) const {
  std::unique_ptr<Variant>& variant = variants_[present];
  if (!variant) variant = std::make_unique<Variant>(Make(present));
  return *variant;
}

ServedProgram::Variant ServedProgram::Make(uint64_t present) const {
  Variant variant;
  variant.has_barriers = has_barriers_;
  // The variant has the operators of the chosen parts of the program. For each operator of the
  // program, this is its number in the variant, or -1 if it is not in the variant.
  std::vector<int> place(ops_.size(), -1);
  int segment = -1;
  for (int op : launch_order_) {
    const ServedOp& from = ops_[op];
    if (!(present >> from.part & 1)) continue;
    place[op] = static_cast<int>(variant.ops.size());
    if (from.segment != segment) {
      segment = from.segment;
      variant.segment_begin.push_back(place[op]);
    }
    variant.segment_of.push_back(static_cast<int>(variant.segment_begin.size()) - 1);
    variant.ops.push_back({from.work_us, from.cores, from.memory_share, from.num_waits, 0, 0, 0});
  }
  const int num_ops = static_cast<int>(variant.ops.size());
  variant.segment_begin.push_back(num_ops);

  std::vector<std::vector<int>> successors(num_ops);
  const auto follow = [&](int source, int target) {
    const int from = place[source];
    const int to = place[target];
    if (variant.segment_of[from] == variant.segment_of[to]) successors[from].push_back(to);
  };
  for (const auto& stream : streams_) {
    int last = -1;
    for (int op : stream) {
      if (place[op] < 0) continue;
      if (last >= 0) follow(last, op);
      last = op;
    }
  }
  for (int op : launch_order_) {
    if (place[op] < 0) continue;
    for (int source : predecessors_[op]) follow(source, op);
  }
  for (int op = 0; op < num_ops; ++op) {
    auto& targets = successors[op];
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    variant.ops[op].first_successor = static_cast<int>(variant.successors.size());
    variant.successors.insert(variant.successors.end(), targets.begin(), targets.end());
    variant.ops[op].last_successor = static_cast<int>(variant.successors.size());
    for (int target : targets) ++variant.ops[target].waits_for;
  }
  return variant;
}

AloneRun ServedProgram::Alone(uint64_t present, const ServingDevice& device) const {
  const Variant& variant = Of(present);
  if (variant.alone.us < 0) {
    ServingEngine engine(device);
    engine.Start(*this, present, false);
    engine.Advance(std::numeric_limits<double>::infinity());
    variant.alone = {engine.now_us(), engine.busy_us()};
  }
  return variant.alone;
}

}  // namespace tvm_interop

#include "passes/schedulers/gpu_windows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "passes/graph/error.h"
#include "passes/graph/topological.h"

namespace tvm_interop {
namespace {

constexpr double kNoLower = std::numeric_limits<double>::infinity();

// Returns an order of all operators that agrees with the dependencies and with each GPU's own
// order.
std::vector<int> CommonOrder(const OpGraph& graph, const GpuOrders& orders) {
  std::vector<std::vector<int>> successors(graph.num_ops());
  for (int op = 0; op < graph.num_ops(); ++op) successors[op] = graph.successors(op);
  for (const auto& ops : orders) {
    for (size_t i = 1; i < ops.size(); ++i) successors[ops[i - 1]].push_back(ops[i]);
  }
  std::vector<int> order = TopologicalOrder(successors);
  if (order.size() == successors.size()) return order;
  std::string path;
  const std::vector<int> cycle = FindCycle(successors);
  for (int op : cycle) path += "`" + graph.name(op) + "` -> ";
  throw ScheduleError("the GPUs' orders contradict the dependencies: " + path + "`" +
                      graph.name(cycle.front()) +
                      "` wait for each other in a circle; change the order on one GPU");
}

// All stages of all GPUs in one order, and the end time of each stage. The order agrees with the
// dependencies and with the order of each GPU.
class Sequence {
 public:
  Sequence(const GpuCosts& costs, const GpuOrders& orders)
      : costs_(costs), gpus_(orders.size()), stage_of_(costs.num_ops()) {
    for (size_t gpu = 0; gpu < orders.size(); ++gpu) {
      int before = -1;
      for (int op : orders[gpu]) {
        const int rank = costs.rank(op);
        const int stage = stage_of_[rank] = static_cast<int>(stages_.size());
        stages_.push_back({{rank}, static_cast<int>(gpu), before, -1, costs.us(rank)});
        if (before >= 0) stages_[before].behind = stage;
        before = stage;
      }
    }
    for (int op : CommonOrder(costs.graph(), orders)) {
      sequence_.push_back(stage_of_[costs.rank(op)]);
    }
    Number(0);
    Commit(0);
    SortByStart();
  }

  double latency_us() const { return latency_us_; }
  double StartOf(int rank) const { return Start(stages_[stage_of_[rank]], Size()).first; }
  bool IsSingle(int rank) const { return stages_[stage_of_[rank]].ranks.size() == 1; }
  // Returns the next operator on the same GPU if it is alone in its stage. Returns -1 if its stage
  // has several operators, or if there is no next operator.
  int SingleBehind(int rank) const {
    const int behind = stages_[stage_of_[rank]].behind;
    return behind >= 0 && stages_[behind].ranks.size() == 1 ? stages_[behind].ranks[0] : -1;
  }

  // Whether the longest path that was found leads through one of `ranks`. If not, merging these
  // operators cannot make the schedule shorter.
  bool MayShorten(const std::vector<int>& ranks) const {
    return std::any_of(ranks.begin(), ranks.end(),
                       [this](int rank) { return is_critical_[stage_of_[rank]] != 0; });
  }

  // Returns the latency of the schedule if the operators in `ranks` become one stage that takes
  // `us`. These operators must follow each other on a GPU. Returns kNoLower if the latency is not
  // below `limit_us`, or if stages would wait for each other in a circle.
  double Try(const std::vector<int>& ranks, double us, double limit_us) {
    const Region region = RegionOf(ranks);
    if (region.has_circle) return kNoLower;
    const std::vector<Stage> members = Merge(ranks, us, region);
    const double latency_us = Visit(region.first, limit_us);
    TakeApart(members, region);
    return latency_us;
  }

  void Keep(const std::vector<int>& ranks, double us) {
    const Region region = RegionOf(ranks);
    Merge(ranks, us, region);
    Commit(region.first);
  }

  GpuStages Stages() const {
    GpuStages found(gpus_);
    for (int s : sequence_) {
      std::vector<int> ops;
      for (int rank : stages_[s].ranks) ops.push_back(costs_.op(rank));
      found[stages_[s].gpu].push_back(std::move(ops));
    }
    return found;
  }

 private:
  struct Stage {
    std::vector<int> ranks;
    int gpu;
    int before, behind;  // the stages before and after this stage on its GPU; -1 for none
    double us;
    double end_us = 0;
    double visited_us = 0;  // end time that the last call of Visit computed
    int position = 0;       // position of the stage in `sequence_`
  };

  // The region: the part of the sequence of stages from the first to the last operator to merge.
  struct Region {
    int first;
    // The stages of the region, in their order before the merge and in their order after it. In
    // `new_order`, the first merged stage stands for all merged stages.
    std::vector<int> old_order, new_order;
    bool has_circle = false;
  };

  int Size() const { return static_cast<int>(sequence_.size()); }

  void Number(int from) {
    for (int i = from; i < Size(); ++i) stages_[sequence_[i]].position = i;
  }

  // Returns the time at which the stage can start: its inputs have arrived and its GPU is free.
  // Also returns the stage whose end or copy determines this time, or -1 if the stage waits for no
  // other stage. For stages from position `from` on, uses the end times that the last Visit
  // computed.
  std::pair<double, int> Start(const Stage& stage, int from) const {
    std::pair<double, int> start = {0, -1};
    const auto wait = [&](int s, double copy_us) {
      const Stage& source = stages_[s];
      const double us = (source.position < from ? source.end_us : source.visited_us) + copy_us;
      if (us > start.first) start = {us, s};
    };
    if (stage.before >= 0) wait(stage.before, 0);
    for (int rank : stage.ranks) {
      for (const Arc& source : costs_.sources(rank)) {
        const int s = stage_of_[source.rank];
        wait(s, stages_[s].gpu == stage.gpu ? 0 : source.us);
      }
    }
    return start;
  }

  // Computes the end times of the stages from position `from` on, and returns the latency of the
  // schedule. Returns kNoLower if the latency is not below `limit_us`.
  double Visit(int from, double limit_us) {
    double latest_us = 0;
    for (int i = 0; i < from; ++i) latest_us = std::max(latest_us, stages_[sequence_[i]].end_us);
    for (int i = from; i < Size() && latest_us < limit_us; ++i) {
      Stage& stage = stages_[sequence_[i]];
      stage.visited_us = Start(stage, from).first + stage.us;
      latest_us = std::max(latest_us, stage.visited_us);
    }
    return latest_us < limit_us ? latest_us : kNoLower;
  }

  void Commit(int from) {
    latency_us_ = Visit(from, kNoLower);
    for (int i = from; i < Size(); ++i) {
      stages_[sequence_[i]].end_us = stages_[sequence_[i]].visited_us;
    }
    // Marks the stages of a longest path. The walk begins at a stage that ends last, and goes from
    // each stage back to the stage that this stage waited for.
    is_critical_.assign(stages_.size(), 0);
    int last = -1;
    for (int s : sequence_) {
      if (last < 0 || stages_[s].end_us > stages_[last].end_us) last = s;
    }
    for (; last >= 0; last = Start(stages_[last], Size()).second) is_critical_[last] = 1;
  }

  // Sorts the stages by start time, so that stages to merge are close together. Stages that start
  // at the same time keep their order, so a stage stays after the stages that it waits for.
  void SortByStart() {
    std::vector<double> start_us(stages_.size());
    for (int s : sequence_) start_us[s] = Start(stages_[s], Size()).first;
    std::stable_sort(sequence_.begin(), sequence_.end(),
                     [&](int a, int b) { return start_us[a] < start_us[b]; });
    Number(0);
  }

  Region RegionOf(const std::vector<int>& ranks) const {
    const int kept = stage_of_[ranks.front()];
    const auto is_member = [&](int s) {
      return std::any_of(ranks.begin(), ranks.end(),
                         [&](int rank) { return stage_of_[rank] == s; });
    };
    Region region;
    region.first = stages_[kept].position;
    const int last = stages_[stage_of_[ranks.back()]].position;
    region.old_order.assign(sequence_.begin() + region.first, sequence_.begin() + last + 1);
    // An entry for each position in the region. It says whether the stage at this position is one
    // of the stages to merge, or waits for one of them.
    std::vector<char> is_behind(region.old_order.size());
    const auto waits_behind = [&](int s) {
      const int at = stages_[s].position - region.first;
      return at >= 0 && is_behind[at];
    };
    std::vector<int> behind;
    for (size_t i = 0; i < region.old_order.size(); ++i) {
      const Stage& stage = stages_[region.old_order[i]];
      bool waits = false;
      for (int rank : stage.ranks) {
        for (const Arc& source : costs_.sources(rank))
          waits |= waits_behind(stage_of_[source.rank]);
      }
      if (is_member(region.old_order[i])) {
        region.has_circle |= waits;
        is_behind[i] = 1;
        continue;
      }
      is_behind[i] = waits || (stage.before >= 0 && waits_behind(stage.before));
      (is_behind[i] ? behind : region.new_order).push_back(region.old_order[i]);
    }
    region.new_order.push_back(kept);
    region.new_order.insert(region.new_order.end(), behind.begin(), behind.end());
    return region;
  }

  void Replace(int first, const std::vector<int>& old_order, const std::vector<int>& new_order) {
    const auto begin = sequence_.begin() + first;
    sequence_.erase(begin, begin + static_cast<std::ptrdiff_t>(old_order.size()));
    sequence_.insert(sequence_.begin() + first, new_order.begin(), new_order.end());
    Number(first);
  }

  // Merges the stages of `ranks`. Returns these stages as they were before.
  std::vector<Stage> Merge(const std::vector<int>& ranks, double us, const Region& region) {
    std::vector<Stage> members;
    for (int rank : ranks) members.push_back(stages_[stage_of_[rank]]);
    const int kept = stage_of_[ranks.front()];
    for (int rank : ranks) stage_of_[rank] = kept;
    stages_[kept].ranks = ranks;
    stages_[kept].us = us;
    stages_[kept].behind = members.back().behind;
    if (members.back().behind >= 0) stages_[members.back().behind].before = kept;
    Replace(region.first, region.old_order, region.new_order);
    return members;
  }

  void TakeApart(const std::vector<Stage>& members, const Region& region) {
    const int kept = stage_of_[members.front().ranks.front()];
    int s = kept;
    for (const Stage& member : members) {
      stages_[s] = member;
      stage_of_[member.ranks.front()] = s;
      s = member.behind;
    }
    // The merge is undone, so the stage that followed the merged stage now follows the last of the
    // restored stages.
    if (s >= 0) stages_[s].before = stage_of_[members.back().ranks.front()];
    Replace(region.first, region.new_order, region.old_order);
  }

  const GpuCosts& costs_;
  const size_t gpus_;
  std::vector<Stage> stages_;
  std::vector<int> stage_of_;      // by rank
  std::vector<int> sequence_;      // of stages
  std::vector<char> is_critical_;  // by stage
  double latency_us_ = 0;
};

bool AreIndependent(const OpGraph& graph, int op, const std::vector<int>& others) {
  return std::none_of(others.begin(), others.end(), [&](int other) {
    return graph.Reaches(op, other) || graph.Reaches(other, op);
  });
}

// Returns the ranks of the best window (operators that become one stage) that begins with `first`,
// and the latency of this stage. The ranks are empty if no window makes the schedule shorter.
std::pair<std::vector<int>, double> BestWindow(const GpuCosts& costs, Sequence* sequence, int first,
                                               int window, const StagePrices& prices) {
  std::pair<std::vector<int>, double> best;
  double best_us = sequence->latency_us();
  std::vector<int> ranks = {first};
  std::vector<int> ops = {costs.op(first)};
  while (static_cast<int>(ranks.size()) < window) {
    const int behind = sequence->SingleBehind(ranks.back());
    if (behind < 0 || !AreIndependent(costs.graph(), costs.op(behind), ops)) break;
    ranks.push_back(behind);
    ops.push_back(costs.op(behind));
    const double* price_us = prices.Find(ops);
    if (price_us == nullptr || !sequence->MayShorten(ranks)) continue;
    const double us = sequence->Try(ranks, *price_us, best_us);
    if (us < best_us) {
      best_us = us;
      best = {ranks, *price_us};
    }
  }
  return best;
}

}  // namespace

StageBatch WindowCandidates(const GpuCosts& costs, const GpuOrders& orders, int window) {
  StageBatch batch;
  for (const auto& order : orders) {
    for (size_t first = 0; first < order.size(); ++first) {
      std::vector<int> ops = {order[first]};
      for (size_t next = first + 1; next < order.size() && static_cast<int>(ops.size()) < window &&
                                    AreIndependent(costs.graph(), order[next], ops);
           ++next) {
        ops.push_back(order[next]);
        for (int op : ops) {
          batch.ops.push_back(op);
          batch.group_ends.push_back(static_cast<int64_t>(batch.ops.size()));
        }
        batch.stage_ends.push_back(static_cast<int64_t>(batch.group_ends.size()));
      }
    }
  }
  return batch;
}

GpuSchedule OpenWindows(const GpuCosts& costs, const GpuOrders& orders, int window,
                        const StagePrices& prices, WindowOrder order) {
  Sequence sequence(costs, orders);
  std::vector<int> ranks(costs.num_ops());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (order == WindowOrder::kStart) {
    std::vector<double> start_us(ranks.size());
    for (int rank : ranks) start_us[rank] = sequence.StartOf(rank);
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](int a, int b) { return start_us[a] < start_us[b]; });
  }
  for (int rank : ranks) {
    if (window < 2 || !sequence.IsSingle(rank)) continue;
    const auto [found, us] = BestWindow(costs, &sequence, rank, window, prices);
    if (!found.empty()) sequence.Keep(found, us);
  }
  return {sequence.Stages(), sequence.latency_us()};
}

}  // namespace tvm_interop

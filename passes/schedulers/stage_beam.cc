#include "passes/schedulers/stage_beam.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "passes/graph/bit_set.h"
#include "passes/schedulers/part_sets.h"
#include "passes/schedulers/set_index.h"
#include "passes/schedulers/stage_groups.h"

namespace tvm_interop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The largest number of groups that are looked at for one ready operator. If the size of groups is
// not limited, there may be very many groups.
constexpr size_t kMaxGroupsOfOp = 32;
// The search limits the latency of the groups in a stage. From one state, it tries several such
// limits, at most kMaxLengths.
constexpr size_t kMaxLengths = 12;

template <typename Set>
class StageBeamOf : public StageBeam {
 public:
  StageBeamOf(const OpGraph& graph, const std::vector<int>& ops, const std::vector<double>& op_us,
              const EndingLimits& limits, const std::vector<int>& set_of)
      : graph_(graph), ops_(ops), limits_(limits), empty_(MakeEmpty<Set>(ops.size())) {
    std::unordered_map<int, int> local;
    for (size_t i = 0; i < ops_.size(); ++i) {
      local[ops_[i]] = static_cast<int>(i);
      us_.push_back(op_us[ops_[i]]);
      set_of_.push_back(set_of.empty() ? -1 : set_of[ops_[i]]);
    }
    before_.resize(ops_.size());
    after_.resize(ops_.size());
    for (size_t i = 0; i < ops_.size(); ++i) {
      for (int next : graph.successors(ops_[i])) {
        const auto found = local.find(next);
        if (found == local.end()) continue;
        after_[i].push_back(found->second);
        before_[found->second].push_back(static_cast<int>(i));
      }
    }
  }

  BeamResult Run(const BeamOptions& options, const AskPrices& ask) override {
    if (options.backward != is_backward_) TurnRound();
    SetPaths();
    BeamResult result;
    // The states by the number of operators that are done.
    std::vector<std::vector<State>> levels(ops_.size() + 1);
    std::vector<SetIndex<Set>> seen(ops_.size() + 1);
    State first = {empty_, empty_, 0, 0, -1, 0};
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (before_[i].empty()) first.ready.Set(static_cast<int>(i));
    }
    const double total_us = std::accumulate(us_.begin(), us_.end(), 0.0);
    levels[0].push_back(first);
    for (size_t done = 0; done < ops_.size(); ++done) {
      std::vector<State>& level = levels[done];
      seen[done] = {};
      if (level.empty()) continue;
      KeepBest(options.width, &level);
      std::vector<Step> steps;
      for (size_t i = 0; i < level.size(); ++i) {
        FindSteps(level[i], static_cast<int>(i), options, &steps);
      }
      result.transitions += static_cast<int64_t>(steps.size());
      if (result.transitions > options.max_transitions || options.is_over()) return result;
      Price(ask);
      for (const Step& step : steps) {
        const State& from = level[step.from];
        State next = {from.done | step.ops,   step.ready, from.cost_us + price_us_[step.stage], 0,
                      static_cast<int>(done), step.from};
        const double rest_us = LongestPath(next.ready);
        // A sequence that costs exactly `below_us` does not count, because it is not an
        // improvement.
        if (!(next.cost_us + options.certain * rest_us < options.below_us)) continue;
        const double work_us = total_us - WorkOf(next.done);
        next.rank_us = next.cost_us + std::max(rest_us, work_us / options.parallelism);
        const size_t at = static_cast<size_t>(next.done.Count());
        const auto [number, is_new] = seen[at].Insert(next.done);
        if (is_new) {
          levels[at].push_back(next);
        } else if (next.cost_us < levels[at][number].cost_us) {
          levels[at][number] = next;
        }
      }
    }
    result.is_through = true;
    if (!levels.back().empty()) Collect(levels, &result);
    return result;
  }

 private:
  struct State {
    Set done;
    Set ready;
    double cost_us;
    double rank_us;
    int before_level;  // how many operators are done in the previous state; -1 for the first
    int before;
  };
  struct Group {
    Set ops;
    double us;
    double path_us;  // the longest path from an operator of the group to the end
  };
  struct Step {
    int from;  // index, in its level, of the state that the step leaves
    Set ops;
    Set ready;  // the operators that are ready after the step
    uint32_t stage;
  };

  void TurnRound() {
    is_backward_ = !is_backward_;
    std::swap(before_, after_);
  }

  // Sets, for each operator, the longest path from it to the end of the part. If the search runs
  // backward, the path leads to the beginning of the part instead.
  void SetPaths() {
    path_us_ = us_;
    const int n = static_cast<int>(ops_.size());
    for (int k = 0; k < n; ++k) {
      const int i = is_backward_ ? k : n - 1 - k;
      double longest = 0;
      for (int next : after_[i]) longest = std::max(longest, path_us_[next]);
      path_us_[i] += longest;
    }
  }

  double LongestPath(const Set& ready) const {
    double longest = 0;
    ready.ForEach([&](int i) { longest = std::max(longest, path_us_[i]); });
    return longest;
  }

  double WorkOf(const Set& ops) const {
    double sum = 0;
    ops.ForEach([&](int i) { sum += us_[i]; });
    return sum;
  }

  static void KeepBest(size_t width, std::vector<State>* level) {
    std::stable_sort(level->begin(), level->end(),
                     [](const State& a, const State& b) { return a.rank_us < b.rank_us; });
    if (level->size() > width)
      level->erase(level->begin() + static_cast<std::ptrdiff_t>(width), level->end());
    level->shrink_to_fit();
  }

  // Adds an operator to `group`, and all operators that must run before it and are not done.
  // Returns false if the group would get too many operators.
  bool Add(int op, const Set& done, Set* group, int* count) const {
    if (group->Test(op) || done.Test(op)) return true;
    if (limits_.max_group_ops > 0 && *count >= limits_.max_group_ops) return false;
    group->Set(op);
    ++*count;
    for (int source : before_[op]) {
      if (!Add(source, done, group, count)) return false;
    }
    return true;
  }

  bool HasSingleRoot(const Set& group) const {
    const auto& sources = is_backward_ ? after_ : before_;
    int roots = 0;
    group.ForEach([&](int i) {
      roots += std::none_of(sources[i].begin(), sources[i].end(),
                            [&](int source) { return group.Test(source); });
    });
    return roots == 1;
  }

  // Finds the groups that can run next, up to kMaxGroupsOfOp for each ready operator.
  void FindGroups(const State& state) {
    found_.Clear();
    groups_.clear();
    state.ready.ForEach([&](int root) {
      const size_t begin = found_.size();
      Set alone = empty_;
      alone.Set(root);
      found_.Insert(alone);
      for (size_t g = begin; g < found_.size() && found_.size() - begin < kMaxGroupsOfOp; ++g) {
        const Set group = found_[g];
        const int count = group.Count();
        group.ForEach([&](int i) {
          for (int next : after_[i]) {
            Set grown = group;
            int grown_count = count;
            if (group.Test(next) || !Add(next, state.done, &grown, &grown_count)) continue;
            if (!limits_.single_root || HasSingleRoot(grown)) found_.Insert(grown);
          }
        });
      }
    });
    for (const Set& ops : found_.sets()) groups_.push_back({ops, WorkOf(ops), LongestPath(ops)});
    std::stable_sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) {
      return a.path_us != b.path_us ? a.path_us > b.path_us : a.us > b.us;
    });
  }

  // The search tries several limits on the latencies of groups. Returns these limits in ascending
  // order.
  std::vector<double> Lengths() const {
    std::vector<double> lengths;
    for (const Group& group : groups_) lengths.push_back(group.us);
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    if (lengths.size() <= kMaxLengths) return lengths;
    std::vector<double> some;
    for (size_t k = 1; k <= kMaxLengths; ++k) {
      some.push_back(lengths[k * lengths.size() / kMaxLengths - 1]);
    }
    return some;
  }

  void FindSteps(const State& state, int from, const BeamOptions& options,
                 std::vector<Step>* steps) {
    FindGroups(state);
    tried_.Clear();
    // A step is a stage that may run next. Adds a step if it has not been tried from this state,
    // and may belong to a sequence that costs less than `below_us`.
    const auto try_stage = [&](const Set& ops, const std::vector<Set>& groups, double longest_us) {
      if (!tried_.Insert(ops).second) return;
      const Set ready = ReadyAfter(state, ops);
      const double rest_us = longest_us + LongestPath(ready);
      if (state.cost_us + options.certain * rest_us < options.below_us) {
        steps->push_back({from, ops, ready, NumberOf(ops, groups)});
      }
    };
    for (double length_us : Lengths()) {
      Set ops = empty_;
      std::vector<Set> chosen;
      double longest_us = 0;
      for (const Group& group : groups_) {
        if (group.us > length_us || group.ops.Intersects(ops)) continue;
        ops |= group.ops;
        chosen.push_back(group.ops);
        longest_us = std::max(longest_us, group.us);
        try_stage(ops, chosen, longest_us);
        if (limits_.max_groups > 0 && static_cast<int>(chosen.size()) == limits_.max_groups) break;
      }
    }
    // For each set of operators that can be merged, the operators of the set that are ready. The
    // operators with the longest path to the end come first.
    std::map<int, std::vector<Set>> mergeable;
    for (const Group& group : groups_) {
      const int set = group.ops.Count() == 1 ? set_of_[group.ops.First()] : -1;
      if (set >= 0) mergeable[set].push_back(group.ops);
    }
    for (const auto& [set, singles] : mergeable) {
      Set ops = empty_;
      std::vector<Set> chosen;
      for (const Set& single : singles) {
        ops |= single;
        chosen.push_back(single);
        if (chosen.size() > 1) try_stage(ops, chosen, 0);
        if (limits_.max_groups > 0 && static_cast<int>(chosen.size()) == limits_.max_groups) break;
      }
    }
  }

  Set ReadyAfter(const State& state, const Set& ops) const {
    const Set done = state.done | ops;
    Set ready = state.ready - ops;
    ops.ForEach([&](int i) {
      for (int next : after_[i]) {
        if (!ops.Test(next) && std::all_of(before_[next].begin(), before_[next].end(),
                                           [&](int source) { return done.Test(source); })) {
          ready.Set(next);
        }
      }
    });
    return ready;
  }

  // Returns the number of the stage. A new stage is added to the batch of stages whose prices
  // (latencies) are asked for.
  uint32_t NumberOf(const Set& ops, const std::vector<Set>& groups) {
    const auto [number, is_new] = stages_.Insert(ops);
    if (is_new) Append(groups, &to_ask_);
    return number;
  }

  void Append(std::vector<Set> groups, StageBatch* batch) const {
    std::sort(groups.begin(), groups.end(),
              [](const Set& a, const Set& b) { return a.First() < b.First(); });
    for (const Set& group : groups) {
      group.ForEach([&](int i) { batch->ops.push_back(ops_[i]); });
      batch->group_ends.push_back(static_cast<int64_t>(batch->ops.size()));
    }
    batch->stage_ends.push_back(static_cast<int64_t>(batch->group_ends.size()));
  }

  void Price(const AskPrices& ask) {
    if (to_ask_.num_stages() == 0) return;
    const std::vector<double> prices = ask(to_ask_);
    price_us_.insert(price_us_.end(), prices.begin(), prices.end());
    to_ask_ = {};
  }

  void Collect(const std::vector<std::vector<State>>& levels, BeamResult* result) {
    std::vector<Set> stages;
    const State* state = &levels.back().front();
    while (state->before_level >= 0) {
      const State* before = &levels[state->before_level][state->before];
      stages.push_back(state->done - before->done);
      state = before;
    }
    if (!is_backward_) std::reverse(stages.begin(), stages.end());
    for (const Set& stage : stages) {
      std::vector<int> ops;
      stage.ForEach([&](int i) { ops.push_back(ops_[i]); });
      AppendStage(graph_, ops, &result->stages);
      result->price_us.push_back(price_us_[stages_.Insert(stage).first]);
    }
  }

  const OpGraph& graph_;
  const std::vector<int> ops_;
  const EndingLimits limits_;
  const Set empty_;
  std::vector<double> us_;
  std::vector<int> set_of_;
  bool is_backward_ = false;
  // The operators right before and right after each operator. If the search runs backward, the two
  // lists are exchanged.
  std::vector<std::vector<int>> before_, after_;
  std::vector<double> path_us_;
  // The stages found so far and their prices (latencies). Only the first price_us_.size() stages
  // have prices yet.
  SetIndex<Set> stages_;
  std::vector<double> price_us_;
  StageBatch to_ask_;
  // The members below are kept between states to reuse their memory.
  SetIndex<Set> found_, tried_;
  std::vector<Group> groups_;
};

}  // namespace

std::unique_ptr<StageBeam> StageBeam::Make(const OpGraph& graph, const std::vector<int>& ops,
                                           const std::vector<double>& op_us,
                                           const EndingLimits& limits,
                                           const std::vector<int>& set_of) {
  const auto make = [&](auto set) -> std::unique_ptr<StageBeam> {
    return std::make_unique<StageBeamOf<decltype(set)>>(graph, ops, op_us, limits, set_of);
  };
  const size_t words = (ops.size() + 63) / 64;
  if (words <= 1) return make(FixedBitSet<1>());
  if (words <= 2) return make(FixedBitSet<2>());
  if (words <= 4) return make(FixedBitSet<4>());
  if (words <= 8) return make(FixedBitSet<8>());
  if (words <= 16) return make(FixedBitSet<16>());
  return make(BitSet());
}

}  // namespace tvm_interop

#include "passes/schedulers/part_search.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "passes/graph/bit_set.h"
#include "passes/schedulers/endings.h"
#include "passes/schedulers/part_sets.h"
#include "passes/schedulers/set_index.h"
#include "passes/schedulers/stage_groups.h"

namespace tvm_interop {
namespace {

// A limit on the number of transitions also limits the memory for sets and stages. With a limit of
// L transitions, the sets of operators may take L + `kSmall` 64-bit words, and the lists that
// describe the stages may have L + `kSmall` numbers.
constexpr size_t kSmall = 1 << 16;
constexpr size_t kLook = 256;  // the number of states between two calls of `is_over`

// A relative difference of costs that is far above rounding errors, and far below real differences.
constexpr double kRounding = 1e-9;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Set>
class PartSearchOf : public PartSearch {
 public:
  PartSearchOf(const OpGraph& graph, std::vector<int> ops, const EndingLimits& limits)
      : ops_(std::move(ops)),
        empty_(MakeEmpty<Set>(ops_.size())),
        up_sets_(PartUpSets<Set>(graph, ops_)),
        limits_(limits) {}

  bool Enumerate(int64_t max_transitions, const std::function<bool()>& is_over,
                 StageBatch* stages) override {
    const size_t limit = static_cast<size_t>(max_transitions);
    // The limit on transitions also limits the memory for sets and stages (see `kSmall`).
    const size_t max_sets = (limit + kSmall) / empty_.words().size();
    const size_t max_numbers = limit + kSmall;
    if (!MayFit(limit, max_sets, is_over)) return false;
    EndingEnumerator<Set> endings(up_sets_, empty_, limits_);
    SetIndex<Set> states;
    SetIndex<Set> stage_sets;
    StageBatch batch;
    Set all = empty_;
    for (size_t i = 0; i < ops_.size(); ++i) all.Set(static_cast<int>(i));
    states.Insert(all);
    for (size_t i = 0; i < states.size(); ++i) {
      if (i % kLook == 0 && is_over()) return false;
      first_transition_.push_back(transitions_.size());
      const Set state = states[i];
      const bool done =
          endings.ForEach(state, limit - transitions_.size(),
                          [&](const Set& ending, const std::vector<Set>& groups) {
                            if (transitions_.size() == limit) return false;
                            const uint32_t next = states.Insert(state - ending).first;
                            const auto [stage, is_new] = stage_sets.Insert(ending);
                            if (is_new) Append(groups, &batch);
                            transitions_.push_back({stage, next});
                            return states.size() + stage_sets.size() <= max_sets &&
                                   batch.ops.size() + batch.group_ends.size() <= max_numbers;
                          });
      if (!done) return false;
    }
    first_transition_.push_back(transitions_.size());
    transitions_.shrink_to_fit();  // transitions are kept until all parts are priced
    for (const Set& state : states.sets()) state_sizes_.push_back(state.Count());
    smallest_first_ = SmallestFirst();
    num_stages_ = batch.num_stages();
    *stages = std::move(batch);
    return true;
  }

  void SetFirstStage(size_t first_stage) override { first_stage_ = first_stage; }

  size_t num_transitions() const override { return transitions_.size(); }

  void CountInto(IosStats* stats) const override {
    std::vector<double> ways(state_sizes_.size());
    for (uint32_t state : smallest_first_) {
      if (state_sizes_[state] == 0) ways[state] = 1;
      for (size_t t = first_transition_[state]; t < first_transition_[state + 1]; ++t) {
        ways[state] += ways[transitions_[t].next];
      }
    }
    stats->states += static_cast<int64_t>(state_sizes_.size()) - 1;  // minus the empty state
    stats->transitions += static_cast<int64_t>(transitions_.size());
    stats->stages += static_cast<int64_t>(num_stages_);
    stats->schedules *= ways[0];
  }

  std::vector<size_t> Solve(const std::vector<double>& value_us,
                            CheapestWays* ways) const override {
    ways->cost_us.resize(state_sizes_.size());
    ways->first.resize(state_sizes_.size(), CheapestWays::kUnknown);
    for (uint32_t state : smallest_first_) {
      if (state_sizes_[state] == 0) continue;  // the empty state costs nothing

      // The total of a transition is the cost of the cheapest sequence that starts with it. Since
      // the last call, no total has become smaller. So if the total of the transition that was
      // chosen last has not changed, this transition is still the cheapest, and still wins ties.
      size_t first = ways->first[state];
      if (first != CheapestWays::kUnknown &&
          Total(transitions_[first], value_us, *ways) == ways->cost_us[state]) {
        continue;
      }
      first = first_transition_[state];
      double least = Total(transitions_[first], value_us, *ways);
      const size_t end = first_transition_[state + 1];
      for (size_t t = first + 1; t < end && least > ways->cost_us[state]; ++t) {
        const double total = Total(transitions_[t], value_us, *ways);
        if (total < least) {
          least = total;
          first = t;
        }
      }
      ways->cost_us[state] = least;
      ways->first[state] = first;
    }
    std::vector<size_t> stages;
    for (uint32_t state = 0; state_sizes_[state] > 0;) {
      const Transition& transition = transitions_[ways->first[state]];
      stages.push_back(first_stage_ + transition.stage);
      state = transition.next;
    }
    std::reverse(stages.begin(), stages.end());
    return stages;
  }

  double FindNear(const std::vector<double>& value_us, const std::vector<char>& is_priced,
                  const CheapestWays& ways, double gap_us,
                  std::vector<WantedStage>* near) const override {
    const double best_us = ways.cost_us[0];
    // Allow a small difference, because sums of the same numbers in another order may differ in
    // their last bits.
    const double limit_us = (best_us + gap_us) * (1 + kRounding);
    const WaysThrough found = FindWaysThrough(value_us, is_priced, ways, limit_us);
    double next_us = found.beyond_us;
    for (size_t i = 0; i < num_stages_; ++i) {
      const double through_us = found.cost_us[i];
      if (is_priced[first_stage_ + i] || through_us > found.priced_us) continue;
      if (through_us - best_us <= gap_us) {
        near->push_back({first_stage_ + i, through_us - best_us});
      } else {
        next_us = std::min(next_us, through_us);
      }
    }
    return next_us > found.priced_us ? kInfinity : next_us - best_us;
  }

 private:
  struct Transition {
    uint32_t stage;
    uint32_t next;
  };

  // The costs of ways (sequences of stages) that cost no more than a limit. A cost is infinity if
  // there is no such way.
  struct WaysThrough {
    std::vector<double> cost_us;   // for each stage, the cost of the cheapest way that uses it
    double priced_us;              // the cost of the cheapest way that has only priced stages
    double beyond_us = kInfinity;  // a lower bound on the cost of every way above the limit
  };

  // Computes the costs of ways that cost no more than `limit_us`. It looks only at states and
  // transitions on such ways. There are few such ways if the limit is near the cost of the cheapest
  // way.
  WaysThrough FindWaysThrough(const std::vector<double>& value_us,
                              const std::vector<char>& is_priced, const CheapestWays& ways,
                              double limit_us) const {
    WaysThrough found;
    found.cost_us.resize(num_stages_, kInfinity);
    // For each state, the cost of the cheapest way from the first state to this state, and the cost
    // of the cheapest such way on which all stages have prices.
    std::vector<double> reached(state_sizes_.size(), kInfinity);
    std::vector<double> reached_priced(state_sizes_.size(), kInfinity);
    reached[0] = 0;
    reached_priced[0] = 0;
    for (auto state = smallest_first_.rbegin(); state != smallest_first_.rend(); ++state) {
      const double so_far_us = reached[*state];
      const double so_far_priced_us = reached_priced[*state];
      const double least_us = so_far_us + ways.cost_us[*state];
      if (least_us > limit_us) {
        found.beyond_us = std::min(found.beyond_us, least_us);
        continue;
      }
      double beyond_us = kInfinity;
      for (size_t t = first_transition_[*state]; t < first_transition_[*state + 1]; ++t) {
        const auto [stage, next] = transitions_[t];
        const double stage_us = value_us[first_stage_ + stage];
        const double total_us = so_far_us + stage_us + ways.cost_us[next];
        if (total_us > limit_us) {
          beyond_us = std::min(beyond_us, total_us);
          continue;
        }
        found.cost_us[stage] = std::min(found.cost_us[stage], total_us);
        reached[next] = std::min(reached[next], so_far_us + stage_us);
        if (is_priced[first_stage_ + stage]) {
          reached_priced[next] = std::min(reached_priced[next], so_far_priced_us + stage_us);
        }
      }
      found.beyond_us = std::min(found.beyond_us, beyond_us);
    }
    found.priced_us = reached_priced[smallest_first_[0]];
    return found;
  }

  // The cost of the cheapest sequence of stages that starts with the transition.
  double Total(const Transition& transition, const std::vector<double>& value_us,
               const CheapestWays& ways) const {
    return ways.cost_us[transition.next] + value_us[first_stage_ + transition.stage];
  }

  // Whether the part may have no more than `limit` transitions, by a quick lower bound.
  //
  // Any set that holds all predecessors of its operators is a state. Take the operators of a state
  // on which no other operator of the state depends. Any 1 to `max_groups` of these operators are
  // an ending. Counting only such endings is far quicker than enumerating all endings.
  bool MayFit(size_t limit, size_t max_sets, const std::function<bool()>& is_over) const {
    const std::vector<double> least_endings =
        LeastEndings(static_cast<int>(ops_.size()), limits_.max_groups);
    SetIndex<Set> states;
    Set all = empty_;
    for (size_t i = 0; i < ops_.size(); ++i) all.Set(static_cast<int>(i));
    states.Insert(all);
    double least = 0;
    for (size_t i = 0; i < states.size(); ++i) {
      if (i % kLook == 0 && is_over()) return false;
      const Set state = states[i];
      size_t last_ops = 0;
      state.ForEach([&](int u) {
        if (up_sets_[u].HasMoreInCommon(state, 1, u)) return;
        ++last_ops;
        Set next = state;
        next.Reset(u);
        states.Insert(next);
      });
      least += least_endings[last_ops];
      if (least > static_cast<double>(limit) || states.size() > max_sets) return false;
    }
    return true;
  }

  void Append(const std::vector<Set>& groups, StageBatch* batch) const {
    for (const Set& group : groups) {
      group.ForEach([&](int i) { batch->ops.push_back(ops_[i]); });
      batch->group_ends.push_back(static_cast<int64_t>(batch->ops.size()));
    }
    batch->stage_ends.push_back(static_cast<int64_t>(batch->group_ends.size()));
  }

  // The states by ascending size. A transition leads to a smaller state, so the states can be
  // solved in this order.
  std::vector<uint32_t> SmallestFirst() const {
    std::vector<std::vector<uint32_t>> by_size(ops_.size() + 1);
    for (size_t i = 0; i < state_sizes_.size(); ++i) {
      by_size[state_sizes_[i]].push_back(static_cast<uint32_t>(i));
    }
    std::vector<uint32_t> order;
    order.reserve(state_sizes_.size());
    for (const auto& states : by_size) order.insert(order.end(), states.begin(), states.end());
    return order;
  }

  const std::vector<int> ops_;
  const Set empty_;
  const std::vector<Set> up_sets_;
  const EndingLimits limits_;
  // State 0 is the whole part. State i has the transitions from first_transition_[i] up to
  // first_transition_[i + 1].
  std::vector<int> state_sizes_;
  std::vector<size_t> first_transition_;
  std::vector<Transition> transitions_;
  std::vector<uint32_t> smallest_first_;  // the states by ascending size
  size_t first_stage_ = 0;
  size_t num_stages_ = 0;
};

// For a part that always runs as one stage, there is nothing to choose.
class FixedPart : public PartSearch {
 public:
  FixedPart(const OpGraph& graph, std::vector<int> ops) : graph_(graph), ops_(std::move(ops)) {}

  bool Enumerate(int64_t /*max_transitions*/, const std::function<bool()>& /*is_over*/,
                 StageBatch* stages) override {
    *stages = {};
    AppendStage(graph_, ops_, stages);
    return true;
  }
  void SetFirstStage(size_t first_stage) override { stage_ = first_stage; }
  size_t num_transitions() const override { return 1; }
  void CountInto(IosStats* stats) const override {
    ++stats->states;
    ++stats->transitions;
    ++stats->stages;
  }
  std::vector<size_t> Solve(const std::vector<double>& /*value_us*/,
                            CheapestWays* /*ways*/) const override {
    return {stage_};
  }
  double FindNear(const std::vector<double>& /*value_us*/, const std::vector<char>& /*is_priced*/,
                  const CheapestWays& /*ways*/, double /*gap_us*/,
                  std::vector<WantedStage>* /*near*/) const override {
    return kInfinity;
  }

 private:
  const OpGraph& graph_;
  const std::vector<int> ops_;
  size_t stage_ = 0;
};

}  // namespace

std::unique_ptr<PartSearch> PartSearch::MakeFixed(const OpGraph& graph, std::vector<int> ops) {
  return std::make_unique<FixedPart>(graph, std::move(ops));
}

std::unique_ptr<PartSearch> PartSearch::Make(const OpGraph& graph, std::vector<int> ops,
                                             const EndingLimits& limits) {
  const size_t words = (ops.size() + 63) / 64;
  if (words <= 1) return std::make_unique<PartSearchOf<FixedBitSet<1>>>(graph, ops, limits);
  if (words <= 2) return std::make_unique<PartSearchOf<FixedBitSet<2>>>(graph, ops, limits);
  if (words <= 4) return std::make_unique<PartSearchOf<FixedBitSet<4>>>(graph, ops, limits);
  if (words <= 8) return std::make_unique<PartSearchOf<FixedBitSet<8>>>(graph, ops, limits);
  if (words <= 16) return std::make_unique<PartSearchOf<FixedBitSet<16>>>(graph, ops, limits);
  return std::make_unique<PartSearchOf<BitSet>>(graph, ops, limits);
}

}  // namespace tvm_interop

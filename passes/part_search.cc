#include "passes/part_search.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "passes/bit_set.h"
#include "passes/endings.h"
#include "passes/part_sets.h"
#include "passes/set_index.h"

namespace tvm_interop {
namespace {

// A search this small is never cut for the memory of its sets.
constexpr size_t kSmall = 1 << 16;

template <typename Set>
class PartSearchOf : public PartSearch {
 public:
  PartSearchOf(const OpGraph& graph, std::vector<int> ops, const EndingLimits& limits)
      : ops_(std::move(ops)),
        empty_(MakeEmpty<Set>(ops_.size())),
        up_sets_(PartUpSets<Set>(graph, ops_)),
        limits_(limits) {}

  bool Enumerate(int64_t max_transitions, StageBatch* stages) override {
    const size_t limit = static_cast<size_t>(max_transitions);
    // Sets and stages must not take more memory than the transitions they belong to.
    const size_t max_sets = (limit + kSmall) / empty_.words().size();
    const size_t max_numbers = limit + kSmall;
    EndingEnumerator<Set> endings(up_sets_, empty_, limits_);
    SetIndex<Set> states;
    SetIndex<Set> stage_sets;
    StageBatch batch;
    Set all = empty_;
    for (size_t i = 0; i < ops_.size(); ++i) all.Set(static_cast<int>(i));
    states.Insert(all);
    for (size_t i = 0; i < states.size(); ++i) {
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
    transitions_.shrink_to_fit();  // they are kept until all parts are enumerated and priced
    for (const Set& state : states.sets()) state_sizes_.push_back(state.Count());
    num_stages_ = batch.num_stages();
    first_stage_ = stages->num_stages();
    Concatenate(batch, stages);
    return true;
  }

  void CountInto(IosStats* stats) const override {
    std::vector<double> ways(state_sizes_.size());
    for (uint32_t state : SmallestFirst()) {
      if (state_sizes_[state] == 0) ways[state] = 1;
      for (size_t t = first_transition_[state]; t < first_transition_[state + 1]; ++t) {
        ways[state] += ways[transitions_[t].next];
      }
    }
    stats->states += static_cast<int64_t>(state_sizes_.size()) - 1;  // less the empty one
    stats->transitions += static_cast<int64_t>(transitions_.size());
    stats->stages_priced += static_cast<int64_t>(num_stages_);
    stats->schedules *= ways[0];
  }

  std::vector<size_t> Solve(const std::vector<double>& price_us) const override {
    std::vector<double> cost(state_sizes_.size(), std::numeric_limits<double>::infinity());
    std::vector<const Transition*> choice(state_sizes_.size());
    for (uint32_t state : SmallestFirst()) {
      if (state_sizes_[state] == 0) cost[state] = 0;
      for (size_t t = first_transition_[state]; t < first_transition_[state + 1]; ++t) {
        const Transition& transition = transitions_[t];
        const double total = cost[transition.next] + price_us[first_stage_ + transition.stage];
        if (total < cost[state] || choice[state] == nullptr) {
          cost[state] = total;
          choice[state] = &transition;
        }
      }
    }
    std::vector<size_t> chosen;
    for (uint32_t state = 0; state_sizes_[state] > 0; state = choice[state]->next) {
      chosen.push_back(first_stage_ + choice[state]->stage);
    }
    std::reverse(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  struct Transition {
    uint32_t stage;
    uint32_t next;
  };

  void Append(const std::vector<Set>& groups, StageBatch* batch) const {
    for (const Set& group : groups) {
      group.ForEach([&](int i) { batch->ops.push_back(ops_[i]); });
      batch->group_ends.push_back(static_cast<int64_t>(batch->ops.size()));
    }
    batch->stage_ends.push_back(static_cast<int64_t>(batch->group_ends.size()));
  }

  static void Concatenate(const StageBatch& from, StageBatch* to) {
    const int64_t ops = static_cast<int64_t>(to->ops.size());
    const int64_t groups = static_cast<int64_t>(to->group_ends.size());
    to->ops.insert(to->ops.end(), from.ops.begin(), from.ops.end());
    for (int64_t end : from.group_ends) to->group_ends.push_back(ops + end);
    for (int64_t end : from.stage_ends) to->stage_ends.push_back(groups + end);
  }

  // A transition leads to a smaller state, so this is an order to solve in.
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
  // State 0 is the whole part. The transitions of state i are those from first_transition_[i] up to
  // first_transition_[i + 1].
  std::vector<int> state_sizes_;
  std::vector<size_t> first_transition_;
  std::vector<Transition> transitions_;
  size_t first_stage_ = 0;
  size_t num_stages_ = 0;
};

}  // namespace

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

#ifndef PASSES_SCHEDULERS_ENDINGS_H_
#define PASSES_SCHEDULERS_ENDINGS_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "passes/schedulers/set_index.h"

namespace tvm_interop {

// Limits on the endings (sets of operators that may run last) that are enumerated for a state. IOS,
// section 4.3, calls the limits r and s.
struct EndingLimits {
  int max_group_ops = 0;  // r in the paper: the most operators in a group; 0 for no limit
  int max_groups = 0;     // s in the paper: the most groups in an ending; 0 for no limit

  // Whether to enumerate only groups with a single root. Such a group is an operator and all
  // operators that it reaches. The counts in the IOS paper come from code with this rule. If false,
  // a group is any weakly connected set.
  bool single_root = false;
};

// Returns, for each b up to `most`, the number of ways to choose 1 to `max_groups` of b operators.
// If `max_groups` is 0, any number of operators may be chosen. If b operators of a state have no
// readers in it, each choice of 1 to `max_groups` of them is an ending. So entry b is a lower bound
// on the number of endings of the state.
inline std::vector<double> LeastEndings(int most, int max_groups) {
  // Pascal's triangle: choose[k] is "b choose k" while row b is built.
  std::vector<double> choose(static_cast<size_t>(most) + 1);
  std::vector<double> endings(static_cast<size_t>(most) + 1);
  choose[0] = 1;
  for (int b = 1; b <= most; ++b) {
    for (int k = b; k > 0; --k) choose[k] += choose[k - 1];
    for (int k = 1; k <= b && (max_groups == 0 || k <= max_groups); ++k) endings[b] += choose[k];
  }
  return endings;
}

// Enumerates the endings of a state. An ending is a nonempty set of operators such that no operator
// outside the set depends on it (IOS, section 4.1). The groups of an ending are its weakly
// connected components. A set is closed if it holds all readers of its operators. Two disjoint
// closed sets have no edge between them. So an ending is exactly a choice of disjoint, connected,
// closed groups.
//
// Operators are numbered along a topological order. The order of enumeration depends on the state
// alone. Groups are sorted by first operator, then by size, then by their operators. Endings come
// in lexicographic order of their groups, and a shorter ending comes before the endings that extend
// it.
template <typename Set>
class EndingEnumerator {
 public:
  // `up_sets[u]` holds the operator u and all operators that u reaches. `empty` is an empty set of
  // the same size.
  EndingEnumerator(std::vector<Set> up_sets, Set empty, EndingLimits limits)
      : up_sets_(std::move(up_sets)), empty_(std::move(empty)), limits_(limits) {}

  // Calls `visit(ending, groups)` for each ending, with the groups by ascending first operator.
  // Stops as soon as `visit` returns false. Visits nothing if the state has more groups than
  // `max_endings`. Returns whether all endings were visited.
  template <typename Visit>
  bool ForEach(const Set& state, size_t max_endings, Visit visit) {
    // Each single group is an ending. So a state with more than `max_endings` groups has too many
    // endings.
    if (!FindGroups(state, max_endings)) return false;
    pool_.resize(groups_.size());
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = i;
    chosen_.clear();
    return Extend(empty_, 0, pool_.size(), visit);
  }

 private:
  bool FindGroups(const Set& state, size_t max_groups) {
    found_.Clear();
    rooted_.clear();
    state.ForEach([&](int u) {
      // Test the size before making the group, because most operators of a large state reach more
      // operators than a group may hold.
      const int limit = limits_.max_group_ops;
      if (limit > 0 && up_sets_[u].HasMoreInCommon(state, limit, u)) return;
      const Set group = up_sets_[u] & state;
      rooted_.emplace_back(u, group);
      found_.Insert(group);
    });
    if (!limits_.single_root) {
      // A rooted group holds an operator and all operators that it reaches. Any connected group is
      // a union of rooted groups. It grows from one rooted group, and each further rooted group has
      // an operator in common with the union so far.
      for (size_t i = 0; i < found_.size() && found_.size() <= max_groups; ++i) {
        const Set group = found_[i];
        for (const auto& [root, rooted] : rooted_) {
          if (group.Test(root) || !rooted.Intersects(group)) continue;
          const Set united = group | rooted;
          if (FitsGroup(united)) found_.Insert(united);
        }
      }
    }
    if (found_.size() > max_groups) return false;
    groups_ = found_.sets();
    std::sort(groups_.begin(), groups_.end(), ComesBefore);
    return true;
  }

  bool FitsGroup(const Set& group) const {
    return limits_.max_group_ops == 0 || group.Count() <= limits_.max_group_ops;
  }

  static bool ComesBefore(const Set& a, const Set& b) {
    const int first_a = a.First();
    const int first_b = b.First();
    if (first_a != first_b) return first_a < first_b;
    const int size_a = a.Count();
    const int size_b = b.Count();
    if (size_a != size_b) return size_a < size_b;
    for (size_t w = 0; w < a.words().size(); ++w) {
      const uint64_t difference = a.words()[w] ^ b.words()[w];
      if (difference != 0) return (a.words()[w] & (difference & -difference)) != 0;
    }
    return false;
  }

  // Extends `ending` by each of the groups in pool_[begin, end). All these groups are disjoint from
  // `ending`.
  template <typename Visit>
  bool Extend(const Set& ending, size_t begin, size_t end, Visit& visit) {
    for (size_t i = begin; i < end; ++i) {
      const Set& group = groups_[pool_[i]];
      const Set extended = ending | group;
      chosen_.push_back(group);
      if (!visit(extended, chosen_)) return false;
      if (limits_.max_groups == 0 || static_cast<int>(chosen_.size()) < limits_.max_groups) {
        for (size_t j = i + 1; j < end; ++j) {
          if (!groups_[pool_[j]].Intersects(group)) pool_.push_back(pool_[j]);
        }
        if (pool_.size() > end && !Extend(extended, end, pool_.size(), visit)) return false;
        pool_.resize(end);
      }
      chosen_.pop_back();
    }
    return true;
  }

  const std::vector<Set> up_sets_;
  const Set empty_;
  const EndingLimits limits_;
  // The members below are kept between states to reuse their memory.
  SetIndex<Set> found_;
  std::vector<std::pair<int, Set>> rooted_;
  std::vector<Set> groups_;
  std::vector<size_t> pool_;  // a stack of lists of groups that may still be added to the ending
  std::vector<Set> chosen_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_ENDINGS_H_

#include "passes/schedulers/endings.h"

#include <set>

#include "passes/graph/bit_set.h"
#include "tests/cpp/check.h"
#include "tests/cpp/random_graph.h"

namespace {

using tvm_interop::BitSet;
using tvm_interop::EndingEnumerator;
using tvm_interop::EndingLimits;
using tvm_interop::FixedBitSet;
using tvm_interop::OpGraph;
using Small = FixedBitSet<1>;
using Groups = std::vector<uint64_t>;

// Returns a random graph as a bit mask of successors for each operator. The ids are a topological
// order.
std::vector<uint64_t> RandomMasks(int n, double density, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint64_t> successors(n);
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      if (random() % 1000 < density * 1000) successors[i] |= uint64_t{1} << j;
    }
  }
  return successors;
}

std::vector<uint64_t> UpMasks(const std::vector<uint64_t>& successors) {
  std::vector<uint64_t> up(successors.size());
  for (size_t i = up.size(); i-- > 0;) {
    up[i] = uint64_t{1} << i;
    for (size_t j = i; j < up.size(); ++j) {
      if (successors[i] >> j & 1) up[i] |= up[j];
    }
  }
  return up;
}

Small ToSet(uint64_t mask) { return Small({mask}); }

// Returns the weakly connected components of `ending`, in ascending order of their first operator.
Groups Components(uint64_t ending, const std::vector<uint64_t>& successors) {
  Groups groups;
  while (ending != 0) {
    uint64_t group = ending & -ending;
    for (uint64_t before = 0; before != group;) {
      before = group;
      for (size_t i = 0; i < successors.size(); ++i) {
        const uint64_t self = uint64_t{1} << i;
        if (group & self) group |= successors[i] & ending;
        if ((ending & self) && (successors[i] & group)) group |= self;
      }
    }
    groups.push_back(group);
    ending &= ~group;
  }
  return groups;
}

int Roots(uint64_t group, const std::vector<uint64_t>& successors) {
  uint64_t read = 0;
  for (size_t i = 0; i < successors.size(); ++i) {
    if (group >> i & 1) read |= successors[i];
  }
  return __builtin_popcountll(group & ~read);
}

// Returns every subset of `state` that is an ending within the limits.
std::set<Groups> BruteEndings(uint64_t state, const std::vector<uint64_t>& successors,
                              const EndingLimits& limits) {
  std::set<Groups> endings;
  for (uint64_t ending = state; ending != 0; ending = (ending - 1) & state) {
    bool is_closed = true;
    for (size_t i = 0; i < successors.size(); ++i) {
      if ((ending >> i & 1) && (successors[i] & state & ~ending)) is_closed = false;
    }
    if (!is_closed) continue;
    const Groups groups = Components(ending, successors);
    bool fits = limits.max_groups == 0 || static_cast<int>(groups.size()) <= limits.max_groups;
    for (uint64_t group : groups) {
      if (limits.max_group_ops > 0 && __builtin_popcountll(group) > limits.max_group_ops) {
        fits = false;
      }
      if (limits.single_root && Roots(group, successors) > 1) fits = false;
    }
    if (fits) endings.insert(groups);
  }
  return endings;
}

// Returns the endings of `state` in the order in which they are enumerated.
std::vector<Groups> Enumerate(uint64_t state, const std::vector<uint64_t>& successors,
                              const EndingLimits& limits) {
  std::vector<Small> up;
  for (uint64_t mask : UpMasks(successors)) up.push_back(ToSet(mask));
  EndingEnumerator<Small> enumerator(up, Small(), limits);
  std::vector<Groups> endings;
  const bool done = enumerator.ForEach(ToSet(state), SIZE_MAX,
                                       [&](const Small& ending, const std::vector<Small>& groups) {
                                         Groups masks;
                                         uint64_t all = 0;
                                         for (const Small& group : groups) {
                                           masks.push_back(group.words()[0]);
                                           all |= masks.back();
                                         }
                                         CHECK_EQ(all, ending.words()[0]);
                                         endings.push_back(masks);
                                         return true;
                                       });
  CHECK(done);
  return endings;
}

const EndingLimits kLimits[] = {{0, 0, false}, {0, 0, true},  {3, 8, false},
                                {3, 8, true},  {2, 2, false}, {1, 3, true}};

// Returns a random state: the operators that are left after a few endings were removed. Like each
// state of IOS, it contains the predecessors of each of its operators.
uint64_t RandomState(const std::vector<uint64_t>& successors, unsigned seed) {
  const uint64_t all = (uint64_t{1} << successors.size()) - 1;
  uint64_t state = all;
  std::mt19937 random(seed);
  const std::vector<uint64_t> up = UpMasks(successors);
  for (int i = 0; i < static_cast<int>(seed % 4); ++i) state &= ~up[random() % up.size()];
  return state;
}

TEST_CASE(EnumeratesWhatTheDefinitionAllows) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const auto successors = RandomMasks(2 + seed % 9, 0.1 + 0.06 * (seed % 8), seed);
    const uint64_t state = RandomState(successors, seed);
    for (const EndingLimits& limits : kLimits) {
      const std::vector<Groups> found = Enumerate(state, successors, limits);
      const std::set<Groups> distinct(found.begin(), found.end());
      CHECK_EQ(distinct.size(), found.size());
      CHECK(distinct == BruteEndings(state, successors, limits));
    }
  }
}

TEST_CASE(ADiamondTurnedUpsideDownNeedsCompleteMode) {
  // In the graph 0 -> 2 <- 1, all three operators form one group with two roots.
  const std::vector<uint64_t> successors = {4, 4, 0};
  CHECK_EQ(Enumerate(7, successors, {0, 0, true}), std::vector<Groups>({{5}, {6}, {4}}));
  CHECK_EQ(Enumerate(7, successors, {0, 0, false}), std::vector<Groups>({{5}, {7}, {6}, {4}}));
}

TEST_CASE(OrderIsLexicographicAndDependsOnTheStateAlone) {
  // There are three independent operators. An ending comes before the longer endings that extend
  // it.
  CHECK_EQ(Enumerate(7, {0, 0, 0}, {0, 0, false}),
           std::vector<Groups>({{1}, {1, 2}, {1, 2, 4}, {1, 4}, {2}, {2, 4}, {4}}));
  CHECK_EQ(Enumerate(6, {0, 0, 0}, {0, 0, false}), std::vector<Groups>({{2}, {2, 4}, {4}}));
}

TEST_CASE(StopsWhereThereAreTooMany) {
  std::vector<Small> up;
  for (int i = 0; i < 20; ++i) up.push_back(ToSet(uint64_t{1} << i));
  EndingEnumerator<Small> enumerator(up, Small(), {});
  const auto count_all = [](const Small&, const std::vector<Small>&) { return true; };
  CHECK(!enumerator.ForEach(ToSet((1 << 20) - 1), 19, count_all));
  int visits = 0;
  CHECK(!enumerator.ForEach(ToSet((1 << 20) - 1), 20,
                            [&](const Small&, const std::vector<Small>&) { return ++visits < 5; }));
  CHECK_EQ(visits, 5);
}

TEST_CASE(WideSetsGiveWhatNarrowOnesDo) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto successors = RandomMasks(9, 0.3, seed);
    std::vector<BitSet> up;
    for (uint64_t mask : UpMasks(successors)) up.push_back(BitSet({mask, 0}));
    EndingEnumerator<BitSet> enumerator(up, tvm_interop::EmptyBitSet(128), {3, 8, false});
    std::vector<Groups> wide;
    enumerator.ForEach(BitSet({511, 0}), SIZE_MAX,
                       [&](const BitSet&, const std::vector<BitSet>& groups) {
                         wide.emplace_back();
                         for (const BitSet& group : groups) wide.back().push_back(group.words()[0]);
                         return true;
                       });
    CHECK_EQ(wide, Enumerate(511, successors, {3, 8, false}));
  }
}

}  // namespace

#ifndef PASSES_SCHEDULERS_SET_INDEX_H_
#define PASSES_SCHEDULERS_SET_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tvm_interop {

// Numbers distinct sets 0, 1, 2, ... in the order in which they are inserted. The sets are in a
// flat vector, and an open-addressing hash table holds their numbers. The search makes two look-ups
// per transition. With std::unordered_map, most of the time of a look-up would be lost to cache
// misses.
template <typename Set>
class SetIndex {
 public:
  SetIndex() : slots_(kMinSlots, kFree) {}

  // The number of the set, and whether the set is new.
  std::pair<uint32_t, bool> Insert(const Set& set) {
    const size_t mask = slots_.size() - 1;
    size_t slot = set.Hash() & mask;
    while (slots_[slot] != kFree) {
      if (sets_[slots_[slot]] == set) return {slots_[slot], false};
      slot = (slot + 1) & mask;
    }
    const uint32_t number = static_cast<uint32_t>(sets_.size());
    slots_[slot] = number;
    sets_.push_back(set);
    if (sets_.size() * 2 > slots_.size()) Grow();
    return {number, true};
  }

  size_t size() const { return sets_.size(); }
  const Set& operator[](size_t number) const { return sets_[number]; }
  const std::vector<Set>& sets() const { return sets_; }

  void Clear() {
    sets_.clear();
    std::fill(slots_.begin(), slots_.end(), kFree);
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  static constexpr size_t kMinSlots = 64;

  void Grow() {
    slots_ = std::vector<uint32_t>(slots_.size() * 2, kFree);
    const size_t mask = slots_.size() - 1;
    for (size_t number = 0; number < sets_.size(); ++number) {
      size_t slot = sets_[number].Hash() & mask;
      while (slots_[slot] != kFree) slot = (slot + 1) & mask;
      slots_[slot] = static_cast<uint32_t>(number);
    }
  }

  std::vector<uint32_t> slots_;
  std::vector<Set> sets_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_SET_INDEX_H_

#ifndef PASSES_GRAPH_BIT_SET_H_
#define PASSES_GRAPH_BIT_SET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_interop {

// A set of small integers. `Words` is std::array<uint64_t, W> in the inner loops of the searches,
// where the size is known at compile time. It is std::vector<uint64_t> for sets of any size. The
// operands of a binary operation must have the same number of words.
template <typename Words>
class BasicBitSet {
 public:
  BasicBitSet() : words_{} {}
  explicit BasicBitSet(const Words& words) : words_(words) {}

  void Set(int i) { words_[Word(i)] |= Mask(i); }
  void Reset(int i) { words_[Word(i)] &= ~Mask(i); }
  bool Test(int i) const { return (words_[Word(i)] & Mask(i)) != 0; }

  BasicBitSet& operator|=(const BasicBitSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
    return *this;
  }
  BasicBitSet& operator&=(const BasicBitSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] &= other.words_[w];
    return *this;
  }
  // Set difference.
  BasicBitSet& operator-=(const BasicBitSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] &= ~other.words_[w];
    return *this;
  }
  friend BasicBitSet operator|(BasicBitSet a, const BasicBitSet& b) { return a |= b; }
  friend BasicBitSet operator&(BasicBitSet a, const BasicBitSet& b) { return a &= b; }
  friend BasicBitSet operator-(BasicBitSet a, const BasicBitSet& b) { return a -= b; }
  friend bool operator==(const BasicBitSet& a, const BasicBitSet& b) {
    uint64_t difference = 0;
    for (size_t w = 0; w < a.words_.size(); ++w) difference |= a.words_[w] ^ b.words_[w];
    return difference == 0;
  }
  friend bool operator!=(const BasicBitSet& a, const BasicBitSet& b) { return !(a == b); }

  bool Intersects(const BasicBitSet& other) const {
    uint64_t common = 0;
    for (size_t w = 0; w < words_.size(); ++w) common |= words_[w] & other.words_[w];
    return common != 0;
  }
  int Count() const {
    int count = 0;
    for (uint64_t word : words_) count += __builtin_popcountll(word);
    return count;
  }
  // Whether the two sets have more than `limit` common members that are at least `first`. Stops
  // counting as soon as the answer is known.
  bool HasMoreInCommon(const BasicBitSet& other, int limit, int first) const {
    int count = __builtin_popcountll(words_[Word(first)] & other.words_[Word(first)] &
                                     (~uint64_t{0} << (static_cast<size_t>(first) % 64)));
    for (size_t w = Word(first) + 1; w < words_.size() && count <= limit; ++w) {
      count += __builtin_popcountll(words_[w] & other.words_[w]);
    }
    return count > limit;
  }
  // The smallest member, or -1 if the set is empty.
  int First() const { return NextAfter(-1); }
  // The smallest member above i, or -1 if there is none.
  int NextAfter(int i) const {
    const size_t start = static_cast<size_t>(i + 1);
    size_t w = start / 64;
    if (w >= words_.size()) return -1;
    uint64_t word = words_[w] & (~uint64_t{0} << (start % 64));
    while (word == 0) {
      if (++w == words_.size()) return -1;
      word = words_[w];
    }
    return static_cast<int>(w * 64) + __builtin_ctzll(word);
  }
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t word = words_[w]; word != 0; word &= word - 1) {
        visit(static_cast<int>(w * 64) + __builtin_ctzll(word));
      }
    }
  }
  size_t Hash() const {
    uint64_t hash = 0;
    for (uint64_t word : words_) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return static_cast<size_t>(hash ^ (hash >> 32));
  }
  const Words& words() const { return words_; }

 private:
  static size_t Word(int i) { return static_cast<size_t>(i) / 64; }
  static uint64_t Mask(int i) { return uint64_t{1} << (static_cast<size_t>(i) % 64); }

  Words words_;
};

using BitSet = BasicBitSet<std::vector<uint64_t>>;
template <size_t W>
using FixedBitSet = BasicBitSet<std::array<uint64_t, W>>;

// An empty set with room for the numbers 0 to size - 1.
inline BitSet EmptyBitSet(int size) {
  return BitSet(std::vector<uint64_t>((static_cast<size_t>(size) + 63) / 64));
}

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_BIT_SET_H_

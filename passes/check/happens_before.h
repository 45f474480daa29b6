#ifndef PASSES_CHECK_HAPPENS_BEFORE_H_
#define PASSES_CHECK_HAPPENS_BEFORE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tvm_interop::check {

// The happens-before relation: whether one operator always ends before another operator starts.
//
// For each operator, the relation stores one count for each stream: the number of operators of the
// stream that have ended before the operator starts. A stream runs its operators in order, so the
// count also says which operators these are. A count takes 4 bytes. If there are very many streams,
// one bit for each pair of operators takes less memory than counts. The relation then stores bits.
class HappensBefore {
 public:
  // `waits` lists for each operator the operators that it waits for, by number. Throws
  // std::length_error if the relation would take more than 256 MiB.
  HappensBefore(const std::vector<int>& stream_of, const std::vector<std::vector<int>>& waits);

  bool operator()(int first, int second) const {
    if (has_counts_) return Row(second)[stream_[first]] > place_[first];
    return (Row(second)[first / 32] >> (first % 32) & 1) != 0;
  }
  // Operators that wait for each other in a circle, starting with the operator of the lowest
  // number. Empty if there is no cycle.
  const std::vector<int>& circle() const { return circle_; }
  // A topological order of all operators. If there is a cycle, some operators are missing from it.
  const std::vector<int>& order() const { return order_; }

 private:
  const uint32_t* Row(int op) const { return &known_[static_cast<size_t>(op) * width_]; }
  void Search();
  void Learn(int op, int source);
  void SetCircle(const std::vector<std::pair<int, size_t>>& path, int source);

  std::vector<std::vector<int>> sources_;  // the operators that each operator directly waits for

  // The stream of each operator, and its position on the stream.
  std::vector<uint32_t> stream_, place_;
  bool has_counts_;
  size_t width_;  // the number of 32-bit words in each row of `known_`

  // The relation, with a row for each operator. A row holds a count for each stream, or a bit for
  // each operator.
  std::vector<uint32_t> known_;
  std::vector<int> order_;
  std::vector<int> circle_;
};

}  // namespace tvm_interop::check

#endif  // PASSES_CHECK_HAPPENS_BEFORE_H_

#ifndef PASSES_CHECK_HAPPENS_BEFORE_H_
#define PASSES_CHECK_HAPPENS_BEFORE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tvm_interop::check {

// Which operators end before which others start, whatever the timing.
//
// A stream runs its operators in order, so for each operator and stream a count says which of them
// have ended: 4 bytes for each of these. Where there are so many streams that a bit for each two
// operators is less, that is kept instead.
class HappensBefore {
 public:
  // `waits` are, for each operator, those it waits for. All are numbers of operators. Throws
  // std::length_error where it would take more than 256 MiB.
  HappensBefore(const std::vector<int>& stream_of, const std::vector<std::vector<int>>& waits);

  bool operator()(int first, int second) const {
    if (has_counts_) return Row(second)[stream_[first]] > place_[first];
    return (Row(second)[first / 32] >> (first % 32) & 1) != 0;
  }
  // Operators that wait for each other, from the lowest on; none where all can run.
  const std::vector<int>& circle() const { return circle_; }
  // All operators, each behind those that come before it; not where there is a circle.
  const std::vector<int>& order() const { return order_; }

 private:
  const uint32_t* Row(int op) const { return &known_[static_cast<size_t>(op) * width_]; }
  void Search();
  void Learn(int op, int source);
  void SetCircle(const std::vector<std::pair<int, size_t>>& path, int source);

  std::vector<std::vector<int>> sources_;  // of each operator, those right before it
  std::vector<uint32_t> stream_, place_;   // of each operator, and its place in the stream
  bool has_counts_;
  size_t width_;                 // of a row
  std::vector<uint32_t> known_;  // a row for each operator
  std::vector<int> order_;
  std::vector<int> circle_;
};

}  // namespace tvm_interop::check

#endif  // PASSES_CHECK_HAPPENS_BEFORE_H_

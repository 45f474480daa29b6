#ifndef PASSES_PLAN_VECTOR_CLOCK_H_
#define PASSES_PLAN_VECTOR_CLOCK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_interop {

// Vector clocks. The clock of an operator holds a count for each stream: how many operators of the
// stream have surely finished. A stream runs its operators in order, so the count also says which
// operators these are. A count takes 4 bytes.
class VectorClocks {
 public:
  VectorClocks(size_t num_ops, size_t num_streams)
      : num_streams_(num_streams), counts_(num_ops * num_streams) {}

  const uint32_t* of(int op) const { return &counts_[static_cast<size_t>(op) * num_streams_]; }
  uint32_t* of(int op) { return &counts_[static_cast<size_t>(op) * num_streams_]; }

  // Raises each count in the clock of `op` to at least the same count in the clock of `from`.
  void Join(int op, int from) {
    uint32_t* to = of(op);
    const uint32_t* other = of(from);
    for (size_t s = 0; s < num_streams_; ++s) to[s] = std::max(to[s], other[s]);
  }

 private:
  size_t num_streams_;
  std::vector<uint32_t> counts_;
};

}  // namespace tvm_interop

#endif  // PASSES_PLAN_VECTOR_CLOCK_H_

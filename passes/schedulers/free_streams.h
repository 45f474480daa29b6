#ifndef PASSES_SCHEDULERS_FREE_STREAMS_H_
#define PASSES_SCHEDULERS_FREE_STREAMS_H_

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace tvm_interop {

// The times at which streams become free. The times are stored in a tree of minima, because there
// may be thousands of streams.
class FreeStreams {
 public:
  // All streams are free at time 0.
  explicit FreeStreams(int num_streams) {
    while (leaves_ < static_cast<size_t>(num_streams)) leaves_ *= 2;
    least_.assign(2 * leaves_, std::numeric_limits<double>::infinity());
    std::fill_n(least_.begin() + static_cast<std::ptrdiff_t>(leaves_), num_streams, 0.0);
    for (size_t i = leaves_; i-- > 1;) Refresh(i);
  }

  double operator[](int stream) const { return least_[leaves_ + static_cast<size_t>(stream)]; }

  void Set(int stream, double free_us) {
    size_t i = leaves_ + static_cast<size_t>(stream);
    least_[i] = free_us;
    while (i /= 2) Refresh(i);
  }

  // The stream on which an operator starts earliest if its inputs are ready at `ready_us`. Ties go
  // to the lowest stream. Takes O(log streams).
  int Earliest(double ready_us) const {
    const double by = std::max(ready_us, least_[1]);
    size_t i = 1;
    while (i < leaves_) {
      i *= 2;
      if (least_[i] > by) ++i;
    }
    return static_cast<int>(i - leaves_);
  }

 private:
  void Refresh(size_t i) { least_[i] = std::min(least_[2 * i], least_[2 * i + 1]); }

  size_t leaves_ = 1;
  // The tree of minima: the root has index 1, and the children of i are 2 * i and 2 * i + 1.
  std::vector<double> least_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_FREE_STREAMS_H_

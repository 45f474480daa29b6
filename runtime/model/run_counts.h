#ifndef RUNTIME_MODEL_RUN_COUNTS_H_
#define RUNTIME_MODEL_RUN_COUNTS_H_

#include <atomic>
#include <cstdint>

namespace tvm_interop {

// Counts the runs of all instances of one shape of a model. The counts tell a program which sizes
// its requests have. They also tell how many rows are computed only because requests are padded to
// the shape's size. Any thread may count and read.
class RunCounts {
 public:
  struct Counts {
    uint64_t exact = 0;      // runs with as many rows as the shape has
    uint64_t filled_up = 0;  // runs with fewer rows
    // The rows of all runs together. The rows of one run are the product over all ranges.
    uint64_t rows_given = 0;
    uint64_t rows_computed = 0;
  };

  // Counts a run that was given `given` rows, and has computed `computed`.
  void Count(uint64_t given, uint64_t computed) {
    (given == computed ? exact_ : filled_up_).fetch_add(1, std::memory_order_relaxed);
    rows_given_.fetch_add(given, std::memory_order_relaxed);
    rows_computed_.fetch_add(computed, std::memory_order_relaxed);
  }
  // If a run ends during this call, the run may be included in only some of the numbers.
  Counts counts() const {
    return {exact_.load(std::memory_order_relaxed), filled_up_.load(std::memory_order_relaxed),
            rows_given_.load(std::memory_order_relaxed),
            rows_computed_.load(std::memory_order_relaxed)};
  }

 private:
  // Several threads add to the numbers at once. They are atomic and not guarded by a mutex, because
  // a fork during a run would leave the mutex locked in the child. A thread that reads a number
  // does not rely on any other memory, so relaxed order is enough.
  std::atomic<uint64_t> exact_{0};
  std::atomic<uint64_t> filled_up_{0};
  std::atomic<uint64_t> rows_given_{0};
  std::atomic<uint64_t> rows_computed_{0};
};

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_RUN_COUNTS_H_

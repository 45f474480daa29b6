#ifndef RUNTIME_MODEL_RUN_COUNTS_H_
#define RUNTIME_MODEL_RUN_COUNTS_H_

#include <cstdint>
#include <mutex>

namespace tvm_interop {

// Counts the runs of all instances of one shape of a model. Programs read the counts to find out
// which sizes their requests have, and what it costs to fill them up. Any thread may count and
// read.
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
    const std::lock_guard<std::mutex> lock(mutex_);
    ++(given == computed ? counts_.exact : counts_.filled_up);
    counts_.rows_given += given;
    counts_.rows_computed += computed;
  }
  Counts counts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;  // Guards `counts_`, whose numbers belong together.
  Counts counts_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_RUN_COUNTS_H_

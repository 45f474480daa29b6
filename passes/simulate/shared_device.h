#ifndef PASSES_SIMULATE_SHARED_DEVICE_H_
#define PASSES_SIMULATE_SHARED_DEVICE_H_

#include <cstdint>
#include <vector>

namespace tvm_interop {

// The resources that the operators share while they run at once.
struct DeviceLimits {
  double cores;      // the number of cores; infinity for no limit
  double bandwidth;  // how many purely memory-bound operators run at once at full speed

  // While k operators run, each of them takes 1 + interference * (k - 1) times as long. This factor
  // comes on top of the effect of shared cores and bandwidth.
  double interference = 0;
};

// Throws ScheduleError, which says that the simulated run takes too long, if the time is infinity
// or NaN.
void CheckSimulatedTime(double value);

// Operators that run at once and slow each other down.
//
// Let R be the set of running operators. Compared with operators that run alone, their arithmetic
// takes max(1, sum over R of cores / `cores`) times as long. Their memory traffic takes max(1, sum
// over R of memory_share / `bandwidth`) times as long. The slowdown of an operator is the mean of
// these two factors, weighted by its memory_share, times the factor for interference. An operator
// is not in R while the delay for its waits lasts.
class SharedDevice {
 public:
  explicit SharedDevice(const DeviceLimits& limits) : limits_(limits) {}

  bool idle() const { return running_.empty(); }
  // Starts an operator, which the caller identifies by `tag`. The other arguments describe the
  // operator when it runs alone: the delay for its waits, its latency, the cores it keeps busy, and
  // the share of its latency spent on memory.
  void Start(int64_t tag, double wait_us, double work_us, double cores, double memory_share) {
    running_.push_back({tag, wait_us, work_us, cores, memory_share});
    has_changed_ = true;
  }
  // Runs until an operator ends or the delay for its waits is over, but no longer than `most_us`.
  // Returns the time that this took, in microseconds. Appends the tags of the operators that ended,
  // in the order of their start.
  double Advance(double most_us, std::vector<int64_t>* ended);
  // The share of `cores` that the running operators ask for, at most 1, integrated over time, in
  // microseconds.
  double busy_us() const { return busy_us_; }

 private:
  struct Running {
    int64_t tag;
    double wait_us;  // the time that is left of the delay for its waits
    double work_us;  // the time that is left of its latency when it runs alone
    double cores;
    double memory_share;
    double rate = 1;
  };

  static double TimeLeft(const Running& running) {
    return running.wait_us > 0 ? running.wait_us : running.work_us / running.rate;
  }
  void SetRates();

  DeviceLimits limits_;
  std::vector<Running> running_;
  bool has_changed_ = false;
  double utilisation_ = 0;
  double busy_us_ = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_SHARED_DEVICE_H_

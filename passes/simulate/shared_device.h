#ifndef PASSES_SIMULATE_SHARED_DEVICE_H_
#define PASSES_SIMULATE_SHARED_DEVICE_H_

#include <cstdint>
#include <vector>

namespace tvm_interop {

// What the operators that run at once have together.
struct DeviceLimits {
  double cores;      // infinity for no limit
  double bandwidth;  // how many operators that do nothing but move bytes run at full speed
  // k running operators take 1 + interference * (k - 1) times as long, whatever they ask for.
  double interference = 0;
};

// Throws ScheduleError, saying that the simulated run takes too long, for infinity and NaN.
void CheckSimulatedTime(double value);

// Operators that run at once and slow each other down.
//
// While the operators R run, arithmetic takes max(1, sum over R of cores / `cores`) times as long
// as alone, and memory traffic max(1, sum over R of memory_share / `bandwidth`) times; an operator
// takes a mean of the two, weighed by its memory_share, times the interference. Those that still
// pay for a wait take no part.
class SharedDevice {
 public:
  explicit SharedDevice(const DeviceLimits& limits) : limits_(limits) {}

  bool idle() const { return running_.empty(); }
  // `tag` is the caller's name for the operator; the rest is what it asks for alone.
  void Start(int64_t tag, double wait_us, double work_us, double cores, double memory_share) {
    running_.push_back({tag, wait_us, work_us, cores, memory_share});
    has_changed_ = true;
  }
  // Runs until an operator ends or has paid for its waits, but no longer than `most_us`. Returns
  // how long that took and appends the tags of those that ended, in the order of their start.
  double Advance(double most_us, std::vector<int64_t>* ended);
  // The integral over time of min(1, cores asked for / `cores`).
  double busy_us() const { return busy_us_; }

 private:
  struct Running {
    int64_t tag;
    double wait_us;  // left to pay for waits
    double work_us;  // left to do, as it would take alone
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

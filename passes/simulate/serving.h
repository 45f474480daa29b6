#ifndef PASSES_SIMULATE_SERVING_H_
#define PASSES_SIMULATE_SERVING_H_

#include <cstdint>
#include <queue>
#include <vector>

#include "passes/simulate/served_program.h"
#include "passes/simulate/shared_device.h"

namespace tvm_interop {

// Simulates instances of programs that run at once on one device, event by event.
//
// The host launches the operators of a segment in launch order, as soon as the operators of the
// segment before it have ended. A single host launches the operators of all instances one by one,
// in the order in which they become ready for launch. An operator starts once it is launched and
// all operators that it waits for have ended.
class ServingEngine {
 public:
  explicit ServingEngine(const ServingDevice& device) : device_(device), shared_(device.limits) {}

  double now_us() const { return now_us_; }
  // The share of the cores that running operators ask for, integrated over time, in microseconds.
  double busy_us() const { return shared_.busy_us() + alone_busy_us_; }
  int num_running() const { return num_running_; }

  // Starts an instance now and returns its number. The number may be used again once Advance has
  // returned it. With `alone`, no other instance may run at the same time, and the time of the run
  // comes from ServedProgram::Alone. Throws ScheduleError if another instance runs beside an
  // instance that runs alone. Also throws ScheduleError if `present` holds no part, a part that the
  // program does not have, or parts without operators.
  int Start(const ServedProgram& program, uint64_t present, bool alone);

  // Runs until an instance ends and returns its number. If no instance ends by `until_us`, returns
  // -1, and the simulated time is then `until_us`. If `until_us` is infinity and nothing runs, the
  // simulated time does not advance further.
  int Advance(double until_us);

 private:
  struct Instance {
    const ServedProgram::Variant* variant = nullptr;
    // For each operator, how many events it still waits for. The events are its own launch and the
    // ends of the operators that it waits for.
    std::vector<int> waits_for;
    int segment = 0;
    int left = 0;  // number of operators of the segment that have not ended
  };
  struct Timer {
    double at_us;
    int64_t number;  // the order of timers for the same time
    int instance;
    // What happens at `at_us`. If `op` is kSegment, a segment ends. If it is kEnd, an instance that
    // runs alone ends. Otherwise it is the number of an operator that is launched.
    int op;
    // A priority_queue pops its greatest element first. Here the earliest timer must come first, so
    // it counts as the greatest.
    bool operator<(const Timer& other) const {
      return at_us != other.at_us ? at_us > other.at_us : number > other.number;
    }
  };
  static constexpr int kSegment = -1;
  static constexpr int kEnd = -2;

  void SetTimer(double at_us, int instance, int op);
  void BeginSegment(int instance);
  void EndSegment(int instance);
  // Ends one wait of the operator. After its last wait, the operator starts.
  void Ready(int instance, int op);
  void End(int instance);
  void Fire(const Timer& timer);

  ServingDevice device_;
  SharedDevice shared_;
  double now_us_ = 0;
  double alone_busy_us_ = 0;
  double host_free_us_ = 0;
  int num_running_ = 0;
  bool runs_alone_ = false;
  int64_t num_timers_ = 0;
  std::vector<Instance> instances_;
  std::vector<int> free_;
  std::priority_queue<Timer> timers_;
  std::queue<int> ended_;  // instances that have ended and are not yet returned
  std::vector<int64_t> ended_ops_;
};

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_SERVING_H_

#ifndef PASSES_SIMULATE_SERVING_H_
#define PASSES_SIMULATE_SERVING_H_

#include <cstdint>
#include <queue>
#include <vector>

#include "passes/simulate/served_program.h"
#include "passes/simulate/shared_device.h"

namespace tvm_interop {

// Instances of programs that run at once on one device, event by event.
//
// The host launches the operators of an instance's segment in launch order when the segment may
// begin, those of all instances one after the other, first come first served. An operator starts
// when it was launched and what it waits for has ended.
class ServingEngine {
 public:
  explicit ServingEngine(const ServingDevice& device) : device_(device), shared_(device.limits) {}

  double now_us() const { return now_us_; }
  // The integral over time of the share of the cores that were asked for.
  double busy_us() const { return shared_.busy_us() + alone_busy_us_; }
  int num_running() const { return num_running_; }

  // Starts an instance now and returns its number, which is free again once it has ended. `alone`:
  // nothing else runs beside it, so that what it takes is remembered by the program. Throws
  // ScheduleError where that does not hold, and for parts that the program does not have.
  int Start(const ServedProgram& program, uint64_t present, bool alone);

  // Runs until an instance ends, and returns its number; -1 where none ends by `until_us`, which is
  // then the time, unless that is infinity and nothing runs.
  int Advance(double until_us);

 private:
  struct Instance {
    const ServedProgram::Variant* variant = nullptr;
    std::vector<int> waits_for;  // of each operator: operators that run before it, and its launch
    int segment = 0;
    int left = 0;  // operators of the segment
  };
  struct Timer {
    double at_us;
    int64_t number;  // ties: in the order in which they were set
    int instance;
    int op;                                     // launched then; or kSegment, kEnd
    bool operator<(const Timer& other) const {  // The latest first, as priority_queue wants it.
      return at_us != other.at_us ? at_us > other.at_us : number > other.number;
    }
  };
  static constexpr int kSegment = -1;
  static constexpr int kEnd = -2;

  void SetTimer(double at_us, int instance, int op);
  void BeginSegment(int instance);
  void EndSegment(int instance);
  void Ready(int instance, int op);  // one thing less that it waits for
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
  std::queue<int> ended_;  // not yet returned
  std::vector<int64_t> ended_ops_;
};

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_SERVING_H_

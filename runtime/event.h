#ifndef RUNTIME_EVENT_H_
#define RUNTIME_EVENT_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tvm_interop {

// A point in one stream that other streams wait for.
//
// An event counts runs instead of being reset: run number n is over the event once its count has
// reached n. So nothing has to be cleared between runs, and no run can mistake the signal of an
// earlier one for its own.
//
// On its own cache line: the waiter spins on the count, the signaller must not pay for neighbours.
class alignas(64) Event {
 public:
  // Marks run `run` as past this event and wakes whoever waits for it. What the caller wrote
  // before is visible to every waiter that returns.
  void Signal(uint64_t run);

  // Returns once run `run` is past this event. Spins for `spin`, then parks.
  void Wait(uint64_t run, std::chrono::nanoseconds spin);

 private:
  bool Reached(uint64_t run) const { return count_.load(std::memory_order_acquire) >= run; }
  void Park(uint64_t run);

  std::atomic<uint64_t> count_{0};
  // Waiters that are parked or about to be. `Signal` stores the count, then reads this; `Park`
  // raises this, then reads the count: sequentially consistent, so at least one of the two sees
  // the other and no wake-up is lost.
  std::atomic<int> parked_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_EVENT_H_

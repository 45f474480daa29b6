#ifndef RUNTIME_CPU_PARKING_H_
#define RUNTIME_CPU_PARKING_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tvm_interop {

// Where threads that find nothing to do sleep, and whoever makes something to do wakes them.
//
// A thread first announces that it is about to sleep, then looks once more for work, then sleeps. A
// waker first makes the work visible, then looks whether anyone has announced himself. Both are
// sequentially consistent, so at least one of the two sees the other and no wake-up is lost.
class alignas(64) Parking {
 public:
  // Says that the calling thread is about to sleep. `Sleep` or `Leave` must follow.
  uint64_t Announce();
  // Sleeps until somebody has called `Wake` since that `Announce`. May return without a cause.
  void Sleep(uint64_t announced);
  // There was work after all.
  void Leave() { announced_.fetch_sub(1, std::memory_order_seq_cst); }

  // Wakes up to `threads` of those who have announced themselves. What the caller did before, with
  // sequentially consistent stores, is seen by them, or by their last look for work.
  void Wake(int threads);
  bool IsEmpty() const { return announced_.load(std::memory_order_seq_cst) == 0; }

 private:
  std::atomic<int> announced_{0};
  std::atomic<uint64_t> wakes_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_PARKING_H_

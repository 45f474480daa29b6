#ifndef RUNTIME_CPU_PARKING_H_
#define RUNTIME_CPU_PARKING_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tvm_interop {

// A place where idle threads sleep until another thread wakes them for new work.
//
// A thread first announces that it is about to sleep, then looks once more for work, and then
// sleeps. A thread that has new work first makes the work visible, and then looks for announced
// threads to wake. All these operations are sequentially consistent. So either the first thread
// sees the work, or the second thread sees the announcement. No wake-up is lost.
class alignas(64) Parking {
 public:
  // Announces that the calling thread is about to sleep. A call of `Sleep` or `Leave` must follow.
  // Returns a number to pass to `Sleep`.
  uint64_t Announce();
  // Sleeps until a thread has called `Wake` after the `Announce` that returned `announced`. `Sleep`
  // may also return without such a call.
  void Sleep(uint64_t announced);
  // Withdraws the announcement, because the calling thread has found work.
  void Leave() { announced_.fetch_sub(1, std::memory_order_seq_cst); }

  // Wakes up to `threads` of the announced threads. Each of these threads sees the caller's earlier
  // sequentially consistent stores, either after it wakes or in its last look for work.
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

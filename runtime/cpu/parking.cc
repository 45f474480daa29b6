#include "runtime/cpu/parking.h"

#include "runtime/cpu/preemption_point.h"
#include "runtime/cpu/spinning.h"

namespace tvm_interop {

uint64_t Parking::Announce() {
  announced_.fetch_add(1, std::memory_order_seq_cst);
  PreemptionPoint();
  return wakes_.load(std::memory_order_seq_cst);
}

void Parking::Sleep(uint64_t announced) {
  const int64_t began_ns = NowNs();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (wakes_.load(std::memory_order_relaxed) == announced) wake_.wait(lock);
  }
  CountSleep(NowNs() - began_ns);
  Leave();
}

void Parking::Wake(int threads) {
  if (threads <= 0 || IsEmpty()) return;
  PreemptionPoint();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    wakes_.fetch_add(1, std::memory_order_seq_cst);
  }
  for (int i = 0; i < threads; ++i) wake_.notify_one();
}

}  // namespace tvm_interop

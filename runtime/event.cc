#include "runtime/event.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace tvm_interop {
namespace {

// Tells the processor that this is a spin loop, so that a sibling hyperthread gets its turn.
inline void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Spins between two looks at the clock: the look costs more than a spin.
constexpr int kSpinsPerClockRead = 32;

}  // namespace

void Event::Signal(uint64_t run) {
  count_.store(run, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) == 0) return;
  // Taking the lock once keeps the wake-up from falling between a waiter's look at the count and
  // its going to sleep.
  {
    std::lock_guard<std::mutex> lock(mutex_);
  }
  wake_.notify_all();
}

void Event::Wait(uint64_t run, std::chrono::nanoseconds spin) {
  if (Reached(run)) return;
  if (spin.count() > 0) {
    const auto deadline = std::chrono::steady_clock::now() + spin;
    do {
      for (int i = 0; i < kSpinsPerClockRead; ++i) {
        Relax();
        if (Reached(run)) return;
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  Park(run);
}

void Event::Park(uint64_t run) {
  parked_.fetch_add(1, std::memory_order_seq_cst);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [&] { return count_.load(std::memory_order_seq_cst) >= run; });
  }
  parked_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace tvm_interop

#include "runtime/cpu/spinning.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

namespace tvm_interop {
namespace {

// How long a thread looks for work: outside of a run, during a run, and on a shared core. Waking a
// sleeping thread takes some tens of microseconds, and so do many operators.
constexpr int64_t kLimitNs = 50'000;
constexpr int64_t kLimitInRunNs = 500'000;
constexpr int64_t kSharedLimitNs = 5'000;
// If the thread lost its core less than this time ago, the core still counts as shared.
constexpr int64_t kSharedForNs = 20'000'000;
// How many times a thread looks for work between two reads of the clock. A read of the clock costs
// more than a look.
constexpr int kLooksPerClockRead = 32;

// Whether the calling thread has recently lost its core to another thread. Losses are counted only
// between two calls that are less than `kSharedForNs` apart. An older loss, perhaps between two
// runs, says nothing about the present.
bool SharesItsCore(int64_t now_ns) {
  thread_local int64_t losses = 0;
  thread_local int64_t looked_ns = -kSharedForNs;
  thread_local int64_t lost_ns = -kSharedForNs;
  rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return false;
  if (usage.ru_nivcsw != losses) {
    losses = usage.ru_nivcsw;
    if (now_ns - looked_ns < kSharedForNs) lost_ns = now_ns;
  }
  looked_ns = now_ns;
  return now_ns - lost_ns < kSharedForNs;
}

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Spinning::GoesOn(bool runs) {
  if (++looks_ % kLooksPerClockRead != 0) {
    Relax();
    return true;
  }
  const int64_t now_ns = NowNs();
  if (looks_ == kLooksPerClockRead) {
    began_ns_ = now_ns;
    shares_ = SharesItsCore(now_ns);
  }
  const int64_t limit_ns = shares_ ? kSharedLimitNs : runs ? kLimitInRunNs : kLimitNs;
  return now_ns - began_ns_ < limit_ns;
}

}  // namespace tvm_interop

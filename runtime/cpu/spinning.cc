#include "runtime/cpu/spinning.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

namespace tvm_interop {
namespace {

// How long a thread looks for work before it sleeps: outside of a run, during a run, and on a
// shared core. Waking a sleeping thread takes some tens of microseconds. Many operators do not take
// longer.
constexpr int64_t kLimitNs = 50'000;
constexpr int64_t kLimitInRunNs = 500'000;
constexpr int64_t kSharedLimitNs = 5'000;
// If the thread lost its core less than this time ago, the core still counts as shared.
constexpr int64_t kSharedForNs = 20'000'000;
// A core counts as shared if its thread lost it for at least this time. The system's own threads
// take a core some ten times in a second, for microseconds. Another program takes it for
// milliseconds.
constexpr int64_t kShortLossNs = 500'000;
// How many times a thread looks for work between two reads of the clock. Reading the clock takes
// longer than one look.
constexpr int kLooksPerClockRead = 32;

// When and how often a thread has lost its core to another thread.
struct Losses {
  int64_t read_ns = -kSharedForNs;  // When the thread last read its usage.
  int64_t on_core_ns = 0;           // The thread's CPU time at `read_ns`.
  int64_t number = 0;               // How often the thread had lost its core by `read_ns`.
  int64_t slept_ns = 0;             // How long the thread has chosen to sleep since `read_ns`.
  int64_t lost_ns = -kSharedForNs;  // When the thread last found a loss that is not short.
};
thread_local Losses losses;

// Whether the calling thread has recently lost its core to another thread. Losses are counted only
// between two calls that are less than `kSharedForNs` apart. An older loss, perhaps between two
// runs, says nothing about the present. A short loss does not count either.
bool SharesItsCore(int64_t now_ns) {
  rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return false;
  // Do not use the CPU time that `getrusage` gives: it can be late by a tick of the system, which
  // is some milliseconds.
  const int64_t on_core_ns = OnCoreNs();
  const int64_t passed_ns = now_ns - losses.read_ns;
  const int64_t off_core_ns = passed_ns - (on_core_ns - losses.on_core_ns) - losses.slept_ns;
  if (usage.ru_nivcsw != losses.number && passed_ns < kSharedForNs && off_core_ns > kShortLossNs) {
    losses.lost_ns = now_ns;
  }
  losses.read_ns = now_ns;
  losses.on_core_ns = on_core_ns;
  losses.number = usage.ru_nivcsw;
  losses.slept_ns = 0;
  return now_ns - losses.lost_ns < kSharedForNs;
}

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t OnCoreNs(clockid_t clock) {
  timespec now;
  if (clock_gettime(clock, &now) != 0) return -1;
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void CountSleep(int64_t slept_ns) { losses.slept_ns += slept_ns; }

bool Spinning::GoesOn(bool runs) {
  if (++looks_ % kLooksPerClockRead != 0) {
    Relax();
    return true;
  }
  const int64_t now_ns = NowNs();
  if (looks_ == kLooksPerClockRead) {
    began_ns_ = now_ns;
    shares_ = SharesItsCore(now_ns);
    ran_ns_ = now_ns;
  }
  if (shares_) return now_ns - began_ns_ < kSharedLimitNs;
  if (!runs) return now_ns - ran_ns_ < kLimitNs;
  ran_ns_ = now_ns;
  return now_ns - began_ns_ < kLimitInRunNs;
}

}  // namespace tvm_interop

#ifndef RUNTIME_CPU_SPINNING_H_
#define RUNTIME_CPU_SPINNING_H_

#include <time.h>

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace tvm_interop {

// Tells the processor that this is a spin loop, so that a sibling hyperthread gets its turn.
inline void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

int64_t NowNs();
// Returns the CPU time of a thread in nanoseconds. `clock` is the CPU clock of the thread, by
// default of the calling thread. Returns -1 if the thread has ended.
int64_t OnCoreNs(clockid_t clock = CLOCK_THREAD_CPUTIME_ID);

// Notes that the calling thread has just slept for `slept_ns` by its own choice. Otherwise
// `Spinning` would assume that another thread had the core during this time.
void CountSleep(int64_t slept_ns);

// Decides how long an idle thread keeps looking for work before it sleeps. A thread that shares its
// core with other threads sleeps soon, because its looking takes time from them.
class Spinning {
 public:
  // Counts one look that found no work. Returns false if the thread should now sleep. `runs` says
  // whether a model is running. Then the thread looks for longer, for two reasons: more work is
  // likely soon, and waking a thread also costs the thread that wakes it.
  bool GoesOn(bool runs);
  // Starts the count of looks anew, because the thread has found work.
  void Reset() { looks_ = 0; }

 private:
  int looks_ = 0;
  int64_t began_ns_ = 0;
  int64_t ran_ns_ = 0;  // When a look last saw a model run; at first, when the looking began.
  bool shares_ = false;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_SPINNING_H_

#ifndef RUNTIME_CPU_SPINNING_H_
#define RUNTIME_CPU_SPINNING_H_

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

// For how long a thread that finds nothing to do keeps looking before it sleeps. On a core that it
// has to share it soon gives up: there, looking takes the core from those who could work.
class Spinning {
 public:
  // Counts one look in vain. False where it is time to sleep. `runs` says whether a model runs:
  // there is more to do soon then, and waking a thread costs the one that wakes it, too.
  bool GoesOn(bool runs);
  // There was something to do.
  void Reset() { looks_ = 0; }

 private:
  int looks_ = 0;
  int64_t began_ns_ = 0;
  bool shares_ = false;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_SPINNING_H_

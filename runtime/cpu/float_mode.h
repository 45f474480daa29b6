#ifndef RUNTIME_CPU_FLOAT_MODE_H_
#define RUNTIME_CPU_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tvm_interop {

// How a thread rounds, and whether denormal numbers are zero to it. Each thread has its own, and
// libraries change it (`torch.set_flush_denormal`): operators give the same bits on all threads of
// a run only where all have the mode of the thread that called.
class FloatMode {
 public:
  // The calling thread's.
  static FloatMode OfThisThread() {
    FloatMode mode;
#if defined(__x86_64__)
    mode.bits_ = _mm_getcsr() & ~kExceptionFlags;
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(mode.bits_));
#endif
    return mode;
  }

  // Gives the calling thread this mode.
  void Apply() const {
    if (OfThisThread().bits_ == bits_) return;
#if defined(__x86_64__)
    _mm_setcsr(static_cast<unsigned>(bits_));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(bits_));
#endif
  }

 private:
#if defined(__x86_64__)
  static constexpr unsigned kExceptionFlags = 0x3f;  // What has happened, not what to do.
#endif
  uint64_t bits_ = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_FLOAT_MODE_H_

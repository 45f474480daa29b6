#ifndef RUNTIME_CPU_FLOAT_MODE_H_
#define RUNTIME_CPU_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tvm_interop {

// The floating-point mode of a thread: how the thread rounds, and whether it treats denormal
// numbers as zero. Each thread has a mode of its own, and libraries change it, for example with
// `torch.set_flush_denormal`. Operators give the same bits on all threads of a run only if all
// threads have the caller's mode.
class FloatMode {
 public:
  // Returns the floating-point mode of the calling thread.
  static FloatMode OfThisThread() {
    FloatMode mode;
#if defined(__x86_64__)
    mode.bits_ = _mm_getcsr() & ~kExceptionFlags;
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(mode.bits_));
#endif
    return mode;
  }

  // Sets the floating-point mode of the calling thread to this mode.
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
  // The bits of the mode register that record past exceptions. They are not part of the mode.
  static constexpr unsigned kExceptionFlags = 0x3f;
#endif
  uint64_t bits_ = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_FLOAT_MODE_H_

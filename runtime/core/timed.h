#ifndef RUNTIME_CORE_TIMED_H_
#define RUNTIME_CORE_TIMED_H_

namespace tvm_interop {

// Something that can run repeatedly and be timed, such as an executor.
class Timed {
 public:
  virtual ~Timed() = default;
  // Runs `number` times, one run after the other, and returns the time in seconds.
  virtual double Time(int number) = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_TIMED_H_

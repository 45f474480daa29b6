#ifndef RUNTIME_CORE_TIMED_H_
#define RUNTIME_CORE_TIMED_H_

namespace tvm_interop {

// What can be timed against others.
class Timed {
 public:
  virtual ~Timed() = default;
  // Seconds that `number` runs took, one after the other.
  virtual double Time(int number) = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_TIMED_H_

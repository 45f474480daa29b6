#ifndef RUNTIME_CPU_PREEMPTION_POINT_H_
#define RUNTIME_CPU_PREEMPTION_POINT_H_

// Marks a place between two steps of a claim, where a loss of the core is most likely to show a
// race. In builds for tests, the thread sometimes yields or sleeps at this place. An order of
// events that a busy machine causes once in a million runs then happens in every run. In all other
// builds, `PreemptionPoint` does nothing.
#ifdef TVM_INTEROP_FORCED_PREEMPTION
#include <chrono>
#include <random>
#include <thread>

namespace tvm_interop {

inline void PreemptionPoint() {
  thread_local std::minstd_rand random(
      static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
  const unsigned drawn = random() % 256;
  if (drawn == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  if (drawn < 24) std::this_thread::yield();
}

}  // namespace tvm_interop
#else
namespace tvm_interop {

inline void PreemptionPoint() {}

}  // namespace tvm_interop
#endif

#endif  // RUNTIME_CPU_PREEMPTION_POINT_H_

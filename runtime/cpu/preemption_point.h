#ifndef RUNTIME_CPU_PREEMPTION_POINT_H_
#define RUNTIME_CPU_PREEMPTION_POINT_H_

// A place where losing the core would hurt most: between two steps of a claim. Nothing, but in the
// builds for tests, where a thread now and then yields or sleeps here: what a busy machine does
// once in a million runs then happens in each.
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

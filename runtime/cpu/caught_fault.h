#ifndef RUNTIME_CPU_CAUGHT_FAULT_H_
#define RUNTIME_CPU_CAUGHT_FAULT_H_

#include <functional>
#include <optional>

namespace tvm_interop {

// What stopped a piece of code: the signal, and the address it touched, or the instruction.
struct Fault {
  int signal;
  const void* address;
};

// Runs `body` until its end, or until the calling thread touches memory that it may not, or divides
// an integer by 0. No destructor runs in what a fault leaves: `body` may hold nothing but what a
// machine-code kernel has on its stack. Faults of other threads go to who handled them before.
std::optional<Fault> RunCatchingFaults(const std::function<void()>& body);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_CAUGHT_FAULT_H_

#ifndef RUNTIME_CPU_CAUGHT_FAULT_H_
#define RUNTIME_CPU_CAUGHT_FAULT_H_

#include <functional>
#include <optional>

namespace tvm_interop {

// A fault that stopped a piece of code. `address` is the memory address that the code touched. For
// SIGFPE it is the address of the instruction.
struct Fault {
  int signal;
  const void* address;
};

// Runs `body` until its end or until a fault: the calling thread touches forbidden memory or
// divides an integer by 0. Returns the fault, or nothing if there was none. After a fault, no
// destructor of `body` runs. So `body` must not own anything that a destructor releases. A
// machine-code kernel meets this condition, because it only has data on its stack. Faults of other
// threads go to the signal handlers that were installed before.
std::optional<Fault> RunCatchingFaults(const std::function<void()>& body);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_CAUGHT_FAULT_H_

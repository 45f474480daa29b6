#ifndef RUNTIME_CORE_OP_TIMING_H_
#define RUNTIME_CORE_OP_TIMING_H_

#include <cstdint>

namespace tvm_interop {

struct OpTiming {
  int op = 0;
  int stream = 0;
  // Nanoseconds since the run began.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  // On a CPU: the number of the thread that ran it, 0 for the one that called, and for how long
  // that thread had a core. The rest of the time between start and end it had lost it.
  int thread = 0;
  int64_t on_core_ns = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OP_TIMING_H_

#ifndef RUNTIME_CORE_OP_TIMING_H_
#define RUNTIME_CORE_OP_TIMING_H_

#include <cstdint>

namespace tvm_interop {

struct OpTiming {
  int op = 0;
  int stream = 0;
  // The start and the end of the operator, in nanoseconds since the run began.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  // These two fields are set only on a CPU. `thread` is the number of the thread that ran the
  // operator; number 0 is the thread that called the executor. `on_core_ns` is the time in
  // nanoseconds for which this thread had a core. The thread had no core for the rest of the time
  // between start and end.
  int thread = 0;
  int64_t on_core_ns = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OP_TIMING_H_

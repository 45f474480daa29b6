#ifndef RUNTIME_OP_TIMING_H_
#define RUNTIME_OP_TIMING_H_

#include <cstdint>

namespace tvm_interop {

struct OpTiming {
  int op = 0;
  int stream = 0;
  // Nanoseconds since the run began.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_OP_TIMING_H_

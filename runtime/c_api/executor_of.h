#ifndef RUNTIME_C_API_EXECUTOR_OF_H_
#define RUNTIME_C_API_EXECUTOR_OF_H_

#include "runtime/cpu/executor.h"

struct tvi_instance;

namespace tvm_interop {

// Returns the executor of an instance of the C interface. The bindings for Python time instances
// through it. The executor works on the memory that the latest run used.
CpuExecutor& ExecutorOf(tvi_instance* instance);

}  // namespace tvm_interop

#endif  // RUNTIME_C_API_EXECUTOR_OF_H_

#ifndef RUNTIME_C_API_TIMED_OF_H_
#define RUNTIME_C_API_TIMED_OF_H_

#include "runtime/core/timed.h"

struct tvi_instance;

namespace tvm_interop {

// Returns an instance of the C interface as an object that can be timed. The bindings for Python
// use this function. A timed run works on the inputs and outputs that the latest run used.
Timed& TimedOf(tvi_instance* instance);

}  // namespace tvm_interop

#endif  // RUNTIME_C_API_TIMED_OF_H_

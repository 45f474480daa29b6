#ifndef RUNTIME_CPU_VECTORS_LAST_OF_H_
#define RUNTIME_CPU_VECTORS_LAST_OF_H_

#include <string>

#include "runtime/core/fields.h"
#include "runtime/cpu/vectors/last.h"

namespace tvm_interop {

// Returns the function of this project's own kernels for `activation`, or `kNothing` if they have
// none.
Last LastOf(Activation activation);

// Returns why this project's own kernels cannot apply `activation`, or an empty string if they can.
// The text does not name the operator.
std::string WhyNotLast(Activation activation);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_VECTORS_LAST_OF_H_

#ifndef RUNTIME_CPU_VECTORS_LAST_H_
#define RUNTIME_CPU_VECTORS_LAST_H_

// Files that are compiled for newer CPUs include this header. So it must not include headers with
// inline functions.

namespace tvm_interop {

// The functions that this project's own kernels can apply to their results.
enum class Last {
  kNothing,
  kRelu,
  kClip,
  kSigmoid,
  kSwish,
  kHardSwish,
  kHardSigmoid,
  kGelu,
  kGeluTanh
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_VECTORS_LAST_H_

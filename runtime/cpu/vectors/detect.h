#ifndef RUNTIME_CPU_VECTORS_DETECT_H_
#define RUNTIME_CPU_VECTORS_DETECT_H_

namespace tvm_interop {

// Whether this CPU has the vectors of `avx512.h`.
bool HasAvx512();
// Whether this CPU has the vectors of `avx2.h`.
bool HasAvx2();

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_VECTORS_DETECT_H_

#include "runtime/cpu/rows/kernels.h"

#if defined(__x86_64__)

#include "runtime/cpu/rows/kernels_impl.h"
#include "runtime/cpu/vectors/avx2.h"

namespace tvm_interop {
namespace rows {

Compute Avx2Compute() { return ComputeGroups<Vector256>; }

}  // namespace rows
}  // namespace tvm_interop

#else

namespace tvm_interop {
namespace rows {

Compute Avx2Compute() { return nullptr; }

}  // namespace rows
}  // namespace tvm_interop

#endif

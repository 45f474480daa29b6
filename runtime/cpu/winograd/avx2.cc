#include "runtime/cpu/winograd/kernels.h"

#if defined(__x86_64__)

#include "runtime/cpu/vectors/avx2.h"
#include "runtime/cpu/winograd/kernels_impl.h"

namespace tvm_interop {
namespace winograd {

const Kernels* Avx2Kernels() {
  using C = Computes<Vector256>;
  static constexpr Kernels kKernels{C::kLanes, C::kColumns, C::Compute};
  return &kKernels;
}

}  // namespace winograd
}  // namespace tvm_interop

#else

namespace tvm_interop {
namespace winograd {

const Kernels* Avx2Kernels() { return nullptr; }

}  // namespace winograd
}  // namespace tvm_interop

#endif

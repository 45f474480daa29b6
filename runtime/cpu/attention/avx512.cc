#include "runtime/cpu/attention/kernels.h"

#if defined(__x86_64__)

#include "runtime/cpu/attention/kernels_impl.h"
#include "runtime/cpu/vectors/avx512.h"

namespace tvm_interop {
namespace attention {

const Kernels* Avx512Kernels() {
  using C = Computes<Vector512>;
  static constexpr Kernels kKernels{C::kLanes, C::kColumns, C::kRows, C::Pack, C::Compute};
  return &kKernels;
}

}  // namespace attention
}  // namespace tvm_interop

#else

namespace tvm_interop {
namespace attention {

const Kernels* Avx512Kernels() { return nullptr; }

}  // namespace attention
}  // namespace tvm_interop

#endif

#include "runtime/cpu/winograd/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/cpu/winograd/kernels_impl.h"

namespace tvm_interop {
namespace winograd {
namespace {

struct Vector512 {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 12;

  static Type Load(const float* at) { return _mm512_loadu_ps(at); }
  static void Store(float* at, Type v) { _mm512_storeu_ps(at, v); }
  static Type All(float x) { return _mm512_set1_ps(x); }
  static Type Add(Type a, Type b) { return _mm512_add_ps(a, b); }
  static Type Sub(Type a, Type b) { return _mm512_sub_ps(a, b); }
  static Type Mul(Type a, Type b) { return _mm512_mul_ps(a, b); }
  static Type Div(Type a, Type b) { return _mm512_div_ps(a, b); }
  static Type Fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  static Type NegFma(Type a, Type b, Type c) { return _mm512_fnmadd_ps(a, b, c); }
  static Type Max(Type a, Type b) { return _mm512_max_ps(a, b); }
  static Type Min(Type a, Type b) { return _mm512_min_ps(a, b); }
  static Type Round(Type a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Type Power(Type a) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
};

}  // namespace

const Kernels* Avx512Kernels() {
  using C = Computes<Vector512>;
  static constexpr Kernels kKernels{C::kLanes, C::kColumns, C::Compute};
  return &kKernels;
}

}  // namespace winograd
}  // namespace tvm_interop

#else

namespace tvm_interop {
namespace winograd {

const Kernels* Avx512Kernels() { return nullptr; }

}  // namespace winograd
}  // namespace tvm_interop

#endif

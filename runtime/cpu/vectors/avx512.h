#ifndef RUNTIME_CPU_VECTORS_AVX512_H_
#define RUNTIME_CPU_VECTORS_AVX512_H_

#include <immintrin.h>

// Vectors of AVX-512, for files that are compiled for CPUs with AVX-512. See `vector_math.h`.

namespace tvm_interop {
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
  static Type ZeroBelow(Type limit, Type x, Type value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
  }
  static Type Power(Type a) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
};

}  // namespace
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_VECTORS_AVX512_H_

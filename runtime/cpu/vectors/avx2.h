#ifndef RUNTIME_CPU_VECTORS_AVX2_H_
#define RUNTIME_CPU_VECTORS_AVX2_H_

#include <immintrin.h>

// Vectors of AVX2 and FMA, for files that are compiled for CPUs with AVX2 and FMA. See
// `vector_math.h`.

namespace tvm_interop {
namespace {

struct Vector256 {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;

  static Type Load(const float* at) { return _mm256_loadu_ps(at); }
  static void Store(float* at, Type v) { _mm256_storeu_ps(at, v); }
  static Type All(float x) { return _mm256_set1_ps(x); }
  static Type Add(Type a, Type b) { return _mm256_add_ps(a, b); }
  static Type Sub(Type a, Type b) { return _mm256_sub_ps(a, b); }
  static Type Mul(Type a, Type b) { return _mm256_mul_ps(a, b); }
  static Type Div(Type a, Type b) { return _mm256_div_ps(a, b); }
  static Type Fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  static Type NegFma(Type a, Type b, Type c) { return _mm256_fnmadd_ps(a, b, c); }
  static Type Max(Type a, Type b) { return _mm256_max_ps(a, b); }
  static Type Min(Type a, Type b) { return _mm256_min_ps(a, b); }
  static Type Round(Type a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Type ZeroBelow(Type limit, Type x, Type value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), value);
  }
  static Type Power(Type a) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
};

}  // namespace
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_VECTORS_AVX2_H_

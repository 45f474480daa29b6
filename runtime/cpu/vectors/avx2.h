#ifndef RUNTIME_CPU_VECTORS_AVX2_H_
#define RUNTIME_CPU_VECTORS_AVX2_H_

#include <immintrin.h>

#include <cstdint>

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
  static Type LoadWide(const uint16_t* at) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
  static void StoreNarrow(uint16_t* at, Type v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm_packus_epi32(low, high));
  }
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

#ifndef RUNTIME_CPU_VECTORS_AVX512_H_
#define RUNTIME_CPU_VECTORS_AVX512_H_

#include <immintrin.h>

#include <cstdint>

// Vectors of AVX-512, for files that are compiled for CPUs with AVX-512. See `vector_math.h`.

namespace tvm_interop {
namespace {

struct Vector512 {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 12;

  static Type Load(const float* at) { return _mm512_loadu_ps(at); }
  static void Store(float* at, Type v) { _mm512_storeu_ps(at, v); }
  static Type LoadWide(const uint16_t* at) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  }
  static void StoreNarrow(uint16_t* at, Type v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i words = _mm512_mask_set1_epi32(rounded, is_nan, 0x7fc0);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(words));
  }
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

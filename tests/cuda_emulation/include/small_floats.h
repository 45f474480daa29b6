// `half` and `nv_bfloat16`: numbers of 16 bits that are rounded after each operation, as on a GPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace cuda_emulation {

inline std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Drops the last `dropped` bits, and rounds to nearest, ties to even.
inline std::uint32_t Rounded(std::uint32_t bits, int dropped) {
  const std::uint32_t half = (1u << (dropped - 1)) - 1;
  return (bits + half + (bits >> dropped & 1)) >> dropped;
}

struct HalfFormat {
  static std::uint16_t Narrow(float value) {
    const std::uint32_t bits = BitsOf(value), size = bits & 0x7FFFFFFF;
    const std::uint16_t sign = bits >> 16 & 0x8000;
    if (size > 0x7F800000) return 0x7FFF;          // NaN, as CUDA's conversion gives it.
    if (size >= 0x477FF000) return sign | 0x7C00;  // It rounds to infinity.
    if (size < 0x38800000) {                       // It is denormal: a multiple of 2^-24.
      return sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(FloatOf(size), 24)));
    }
    return sign | static_cast<std::uint16_t>(Rounded(size - (112u << 23), 13));
  }
  static float Widen(std::uint16_t bits) {
    const std::uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7FFFu;
    if (size >= 0x7C00) return FloatOf(sign | 0x7F800000 | (size & 0x3FF) << 13);
    const float value = size < 0x400 ? std::ldexp(static_cast<float>(size), -24)
                                     : FloatOf((size << 13) + (112u << 23));
    return sign != 0 ? -value : value;
  }
};

struct BFloatFormat {
  static std::uint16_t Narrow(float value) {
    return std::isnan(value) ? 0x7FFF : static_cast<std::uint16_t>(Rounded(BitsOf(value), 16));
  }
  static float Widen(std::uint16_t bits) { return FloatOf(static_cast<std::uint32_t>(bits) << 16); }
};

template <typename Format>
struct SmallFloat {
  std::uint16_t bits;

  SmallFloat() = default;
  SmallFloat(const SmallFloat&) = default;
  SmallFloat& operator=(const SmallFloat&) = default;
  // Reductions over the threads of a block use volatile numbers in shared memory, so the operators
  // below also take volatile numbers.
  SmallFloat(const volatile SmallFloat& other) : bits(other.bits) {}
  SmallFloat& operator=(const volatile SmallFloat& other) {
    bits = other.bits;
    return *this;
  }
  void operator=(const SmallFloat& other) volatile { bits = other.bits; }
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  SmallFloat(T value) : bits(Format::Narrow(static_cast<float>(value))) {}
  operator float() const { return Format::Widen(bits); }

#define CUDA_EMULATION_OPERATOR(op)                           \
  friend SmallFloat operator op(SmallFloat a, SmallFloat b) { \
    return static_cast<float>(a) op static_cast<float>(b);    \
  }                                                           \
  friend SmallFloat& operator op## = (SmallFloat & a, SmallFloat b) { return a = a op b; }
  CUDA_EMULATION_OPERATOR(+)
  CUDA_EMULATION_OPERATOR(-)
  CUDA_EMULATION_OPERATOR(*)
  CUDA_EMULATION_OPERATOR(/)
#undef CUDA_EMULATION_OPERATOR
  friend SmallFloat operator-(SmallFloat a) { return -static_cast<float>(a); }

#define CUDA_EMULATION_COMPARISON(op)                      \
  friend bool operator op(SmallFloat a, SmallFloat b) {    \
    return static_cast<float>(a) op static_cast<float>(b); \
  }
  CUDA_EMULATION_COMPARISON(<)
  CUDA_EMULATION_COMPARISON(<=)
  CUDA_EMULATION_COMPARISON(>)
  CUDA_EMULATION_COMPARISON(>=)
  CUDA_EMULATION_COMPARISON(==)
  CUDA_EMULATION_COMPARISON(!=)
#undef CUDA_EMULATION_COMPARISON
};

template <typename T>
struct alignas(4) SmallPair {
  T x, y;
  SmallPair() = default;
  SmallPair(T first, T second) : x(first), y(second) {}
};

}  // namespace cuda_emulation

using half = cuda_emulation::SmallFloat<cuda_emulation::HalfFormat>;
using __half = half;
using nv_bfloat16 = cuda_emulation::SmallFloat<cuda_emulation::BFloatFormat>;
using __nv_bfloat16 = nv_bfloat16;

using half2 = cuda_emulation::SmallPair<half>;
using __half2 = half2;
using nv_bfloat162 = cuda_emulation::SmallPair<nv_bfloat16>;
using __nv_bfloat162 = nv_bfloat162;

inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half2 make_half2(half x, half y) { return {x, y}; }
inline float __half2float(half value) { return value; }
inline half __float2half(float value) { return value; }
inline half __float2half_rn(float value) { return value; }
inline float __bfloat162float(nv_bfloat16 value) { return value; }
inline nv_bfloat16 __float2bfloat16(float value) { return value; }
inline nv_bfloat16 __float2bfloat16_rn(float value) { return value; }

// Functions of one number, for `half` and `nv_bfloat16`: computed as float, and rounded.
#define CUDA_EMULATION_UNARY(name, function)                                      \
  template <typename Format>                                                      \
  cuda_emulation::SmallFloat<Format> name(cuda_emulation::SmallFloat<Format> x) { \
    return function(static_cast<float>(x));                                       \
  }
CUDA_EMULATION_UNARY(hexp, std::exp)
CUDA_EMULATION_UNARY(hexp2, std::exp2)
CUDA_EMULATION_UNARY(hexp10, exp10f)
CUDA_EMULATION_UNARY(hlog, std::log)
CUDA_EMULATION_UNARY(hlog2, std::log2)
CUDA_EMULATION_UNARY(hlog10, std::log10)
CUDA_EMULATION_UNARY(hsqrt, std::sqrt)
CUDA_EMULATION_UNARY(hrsqrt, 1.0f / std::sqrt)
CUDA_EMULATION_UNARY(hrcp, 1.0f /)
CUDA_EMULATION_UNARY(hsin, std::sin)
CUDA_EMULATION_UNARY(hcos, std::cos)
CUDA_EMULATION_UNARY(htanh, std::tanh)
CUDA_EMULATION_UNARY(hfloor, std::floor)
CUDA_EMULATION_UNARY(hceil, std::ceil)
CUDA_EMULATION_UNARY(htrunc, std::trunc)
CUDA_EMULATION_UNARY(hrint, std::nearbyint)
CUDA_EMULATION_UNARY(__habs, std::fabs)
CUDA_EMULATION_UNARY(__hneg, -)
#undef CUDA_EMULATION_UNARY

#define CUDA_EMULATION_BINARY(name, Result, op)                                             \
  template <typename Format>                                                                \
  Result name(cuda_emulation::SmallFloat<Format> a, cuda_emulation::SmallFloat<Format> b) { \
    return a op b;                                                                          \
  }
CUDA_EMULATION_BINARY(__hgt, bool, >)
CUDA_EMULATION_BINARY(__hge, bool, >=)
CUDA_EMULATION_BINARY(__hlt, bool, <)
CUDA_EMULATION_BINARY(__hle, bool, <=)
CUDA_EMULATION_BINARY(__heq, bool, ==)
CUDA_EMULATION_BINARY(__hne, bool, !=)
CUDA_EMULATION_BINARY(__hadd, cuda_emulation::SmallFloat<Format>, +)
CUDA_EMULATION_BINARY(__hsub, cuda_emulation::SmallFloat<Format>, -)
CUDA_EMULATION_BINARY(__hmul, cuda_emulation::SmallFloat<Format>, *)
CUDA_EMULATION_BINARY(__hdiv, cuda_emulation::SmallFloat<Format>, /)
#undef CUDA_EMULATION_BINARY

template <typename Format>
bool __hisnan(cuda_emulation::SmallFloat<Format> x) {
  return std::isnan(static_cast<float>(x));
}

// A fused multiply and add: the product is not rounded before the sum.
template <typename Format>
cuda_emulation::SmallFloat<Format> __hfma(cuda_emulation::SmallFloat<Format> a,
                                          cuda_emulation::SmallFloat<Format> b,
                                          cuda_emulation::SmallFloat<Format> c) {
  return static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c);
}

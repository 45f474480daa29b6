#ifndef RUNTIME_CPU_VECTORS_VECTOR_MATH_H_
#define RUNTIME_CPU_VECTORS_VECTOR_MATH_H_

#include <cstdint>

#include "runtime/cpu/vectors/last.h"

// Functions for vectors of any width. Each file that includes this header has one width, and is
// compiled for the CPUs that have vectors of this width. All functions have internal linkage, so
// that the linker cannot use them on other CPUs. For the same reason, the files include no other
// headers with inline functions.
//
// `Vector` has a type `Type` of `kLanes` numbers, the number `kRows` of rows of a matrix product
// that fit into the registers, and the functions `Load`, `Store`, `LoadWide` (which converts from
// bfloat16), `StoreNarrow` (which rounds to bfloat16, ties to even), `All`, `Add`, `Sub`, `Mul`,
// `Div`, `Fma` (a * b + c), `NegFma` (c - a * b), `Max`, `Min` (which return their second argument
// if one of the two is NaN), `ZeroBelow` (0 where `x` is less than `limit`, else `value`), `Power`
// (2 to the power of an integer) and `Round`.

// Unrolls a loop over an array of vectors, so that the vectors stay in registers. If even one loop
// over an array is not unrolled, compilers keep the array in memory in all loops.
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

namespace tvm_interop {
namespace {

// Multiplies a matrix of kRows rows and `terms` columns by a matrix of `terms` rows and kWide
// vectors. The distance between rows is `stride` numbers in the left matrix, `right_stride` numbers
// in the right matrix, and `to_stride` numbers in the result. Terms are added up in order. Every
// kTerms terms give a partial sum, and the partial sums are added up, because the rounding error of
// one long sum would be larger. If `adds` is true, these sums are added to the numbers that `to`
// holds already.
template <typename Vector, int kRows, int kWide, int64_t kTerms>
void Multiply(const float* left, int64_t stride, const float* right, int64_t terms, float* to,
              int64_t to_stride, int64_t right_stride = kWide * Vector::kLanes, bool adds = false) {
  using V = typename Vector::Type;
  constexpr int kLanes = Vector::kLanes;
  for (int64_t begin = 0; begin < terms; begin += kTerms) {
    const int64_t end = begin + kTerms < terms ? begin + kTerms : terms;
    V sums[kRows][kWide];
    UNROLLED for (int r = 0; r < kRows; ++r) {
      UNROLLED for (int k = 0; k < kWide; ++k) sums[r][k] = Vector::All(0);
    }
    for (int64_t t = begin; t < end; ++t) {
      V factors[kWide];
      UNROLLED for (int k = 0; k < kWide; ++k) factors[k] = Vector::Load(right + k * kLanes);
      UNROLLED for (int r = 0; r < kRows; ++r) {
        const V number = Vector::All(left[r * stride + t]);
        UNROLLED for (int k = 0; k < kWide; ++k) {
          sums[r][k] = Vector::Fma(number, factors[k], sums[r][k]);
        }
      }
      right += right_stride;
    }
    UNROLLED for (int r = 0; r < kRows; ++r) {
      UNROLLED for (int k = 0; k < kWide; ++k) {
        float* sum = to + r * to_stride + k * kLanes;
        const bool is_first = begin == 0 && !adds;
        Vector::Store(sum, is_first ? sums[r][k] : Vector::Add(Vector::Load(sum), sums[r][k]));
      }
    }
  }
}

// Multiplies the first kRows rows of a matrix, or all `rows` rows if there are fewer. If `rows` is
// odd, one row more may be read and written.
template <typename Vector, int kRows, int kWide, int64_t kTerms>
void MultiplyUpTo(int64_t rows, const float* left, int64_t stride, const float* right,
                  int64_t terms, float* to, int64_t to_stride) {
  if constexpr (kRows > 2) {
    if (rows <= kRows - 2) {
      return MultiplyUpTo<Vector, kRows - 2, kWide, kTerms>(rows, left, stride, right, terms, to,
                                                            to_stride);
    }
  }
  Multiply<Vector, kRows, kWide, kTerms>(left, stride, right, terms, to, to_stride);
}

// The exponential function of numbers from -87 to 88. A number below -87 counts as -87, and a
// number above 88 counts as 88. The result for NaN is NaN.
template <typename Vector>
typename Vector::Type VectorExp(typename Vector::Type x) {
  x = Vector::Min(Vector::All(88.0f), Vector::Max(Vector::All(-87.0f), x));
  const auto power = Vector::Round(Vector::Mul(x, Vector::All(1.44269504f)));
  auto rest = Vector::NegFma(power, Vector::All(0.693359375f), x);
  rest = Vector::NegFma(power, Vector::All(-2.12194440e-4f), rest);
  // Computes e to the power of `rest` by the Taylor series. The magnitude of `rest` is at most
  // ln(2) / 2.
  constexpr float kFactors[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
  auto series = Vector::All(1.0f / 5040);
  for (float factor : kFactors) series = Vector::Fma(series, rest, Vector::All(factor));
  return Vector::Mul(series, Vector::Power(power));
}

// The product of `x` and the sigmoid of y, where `minus_y` is -y. So it is swish if `x` is y.
template <typename Vector>
typename Vector::Type VectorTimesSigmoid(typename Vector::Type x, typename Vector::Type minus_y) {
  return Vector::Div(x, Vector::Add(Vector::All(1), VectorExp<Vector>(minus_y)));
}

template <typename Vector>
typename Vector::Type VectorHardSigmoid(typename Vector::Type x) {
  const auto line = Vector::Fma(x, Vector::All(1.0f / 6), Vector::All(0.5f));
  return Vector::Min(Vector::Max(line, Vector::All(0)), Vector::All(1));
}

// The error function comes from Abramowitz and Stegun, "Handbook of Mathematical Functions",
// formula 7.1.26. Its error is at most 1.5e-7.
template <typename Vector>
typename Vector::Type VectorGelu(typename Vector::Type x) {
  constexpr float kFactors[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
  const auto zero = Vector::All(0), one = Vector::All(1);
  const auto magnitude = Vector::Max(x, Vector::Sub(zero, x));
  const auto z = Vector::Mul(magnitude, Vector::All(0.70710678f));
  const auto t = Vector::Div(one, Vector::Fma(z, Vector::All(0.3275911f), one));
  auto series = Vector::All(1.061405429f);
  for (float factor : kFactors) series = Vector::Fma(series, t, Vector::All(factor));
  const auto power = VectorExp<Vector>(Vector::Mul(Vector::Sub(zero, z), z));
  const auto erf = Vector::NegFma(Vector::Mul(series, t), power, one);  // Of the magnitude.
  return Vector::Mul(Vector::All(0.5f), Vector::Fma(magnitude, erf, x));
}

// The approximation of GELU by a hyperbolic tangent, as x * sigmoid(2 y).
template <typename Vector>
typename Vector::Type VectorGeluTanh(typename Vector::Type x) {
  constexpr float kFactor = 1.5957691f;  // 2 * sqrt(2 / pi)
  const auto cubic = Vector::Mul(Vector::Mul(x, x), Vector::All(-0.044715f * kFactor));
  const auto power = Vector::Mul(x, Vector::Sub(cubic, Vector::All(kFactor)));
  return VectorTimesSigmoid<Vector>(x, power);
}

// Applies the function `last` to `x`. `low` and `high` are the bounds of `kClip`.
template <typename Vector>
typename Vector::Type VectorLast(Last last, float low, float high, typename Vector::Type x) {
  const auto zero = Vector::All(0);
  switch (last) {
    case Last::kNothing:
      return x;
    case Last::kRelu:
      return Vector::Max(x, zero);
    case Last::kClip:
      return Vector::Min(Vector::Max(x, Vector::All(low)), Vector::All(high));
    case Last::kSigmoid:
      return VectorTimesSigmoid<Vector>(Vector::All(1), Vector::Sub(zero, x));
    case Last::kSwish:
      return VectorTimesSigmoid<Vector>(x, Vector::Sub(zero, x));
    case Last::kGelu:
      return VectorGelu<Vector>(x);
    case Last::kGeluTanh:
      return VectorGeluTanh<Vector>(x);
    case Last::kHardSwish:
      return Vector::Mul(x, VectorHardSigmoid<Vector>(x));
    case Last::kHardSigmoid:
      return VectorHardSigmoid<Vector>(x);
  }
  return x;
}

}  // namespace
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_VECTORS_VECTOR_MATH_H_

#ifndef TESTS_CPP_PLAIN_VECTOR_H_
#define TESTS_CPP_PLAIN_VECTOR_H_

#include <cmath>

namespace check {

// Vectors made of plain numbers, with the functions that `runtime/cpu/vectors/vector_math.h` wants.
// So the code for wide vectors is tested on CPUs that do not have them, and sanitizers see each
// number that it reads and writes.
template <int kNumLanes, int kNumRows>
struct PlainVector {
  struct Type {
    float numbers[kNumLanes];
  };
  static constexpr int kLanes = kNumLanes;
  static constexpr int kRows = kNumRows;

  template <typename Function>
  static Type Each(const Function& function) {
    Type made;
    for (int i = 0; i < kLanes; ++i) made.numbers[i] = function(i);
    return made;
  }
  static Type Load(const float* at) {
    return Each([&](int i) { return at[i]; });
  }
  static void Store(float* at, const Type& v) {
    for (int i = 0; i < kLanes; ++i) at[i] = v.numbers[i];
  }
  static Type All(float x) {
    return Each([&](int) { return x; });
  }
  static Type Add(const Type& a, const Type& b) {
    return Each([&](int i) { return a.numbers[i] + b.numbers[i]; });
  }
  static Type Sub(const Type& a, const Type& b) {
    return Each([&](int i) { return a.numbers[i] - b.numbers[i]; });
  }
  static Type Mul(const Type& a, const Type& b) {
    return Each([&](int i) { return a.numbers[i] * b.numbers[i]; });
  }
  static Type Div(const Type& a, const Type& b) {
    return Each([&](int i) { return a.numbers[i] / b.numbers[i]; });
  }
  static Type Fma(const Type& a, const Type& b, const Type& c) {
    return Each([&](int i) { return std::fma(a.numbers[i], b.numbers[i], c.numbers[i]); });
  }
  static Type NegFma(const Type& a, const Type& b, const Type& c) {
    return Each([&](int i) { return std::fma(-a.numbers[i], b.numbers[i], c.numbers[i]); });
  }
  static Type Max(const Type& a, const Type& b) {
    return Each([&](int i) { return a.numbers[i] > b.numbers[i] ? a.numbers[i] : b.numbers[i]; });
  }
  static Type Min(const Type& a, const Type& b) {
    return Each([&](int i) { return a.numbers[i] < b.numbers[i] ? a.numbers[i] : b.numbers[i]; });
  }
  static Type Round(const Type& a) {
    return Each([&](int i) { return std::nearbyint(a.numbers[i]); });
  }
  static Type Power(const Type& a) {
    return Each([&](int i) { return std::exp2(a.numbers[i]); });
  }
  static Type ZeroBelow(const Type& limit, const Type& x, const Type& value) {
    return Each([&](int i) { return x.numbers[i] < limit.numbers[i] ? 0 : value.numbers[i]; });
  }
};

}  // namespace check

#endif  // TESTS_CPP_PLAIN_VECTOR_H_

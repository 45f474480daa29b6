#ifndef RUNTIME_CPU_ROWS_KERNELS_IMPL_H_
#define RUNTIME_CPU_ROWS_KERNELS_IMPL_H_

#include <cstdint>

#include "runtime/cpu/rows/kernels.h"
#include "runtime/cpu/vectors/vector_math.h"

// The kernels for any width of vectors. A file that includes this header is compiled for the CPUs
// that have such vectors. All functions have internal linkage, so that the linker cannot use them
// on other CPUs.
//
// `Vector` is described in `vector_math.h`.

namespace tvm_interop {
namespace rows {
namespace {

// The number of terms in a partial sum.
constexpr int64_t kTerms = 256;

// Multiplies the row by a group of kGroup columns.
template <typename Vector, int64_t kGroup>
void MultiplyGroup(const Product& product, const float* packed, float* sums) {
  Multiply<Vector, 1, kGroup / Vector::kLanes, kTerms>(product.row, product.terms, packed,
                                                       product.terms, sums, kGroup);
}

// Writes `there` numbers of the result, at most as many as a vector has. The first has the index
// `first`.
template <typename Vector>
void Finish(const Product& product, const float* sums, int64_t first, int64_t there) {
  alignas(64) float whole[Vector::kLanes];
  const auto load = [&](const float* from) {
    if (there >= Vector::kLanes) return Vector::Load(from + first);
    for (int64_t i = 0; i < Vector::kLanes; ++i) whole[i] = i < there ? from[first + i] : 0;
    return Vector::Load(whole);
  };
  auto x = Vector::Load(sums);
  if (product.bias != nullptr) x = Vector::Add(x, load(product.bias));
  if (product.addend != nullptr) x = Vector::Add(x, load(product.addend));
  x = VectorLast<Vector>(product.last, product.clip_low, product.clip_high, x);
  if (there >= Vector::kLanes) return Vector::Store(product.result + first, x);
  Vector::Store(whole, x);
  for (int64_t i = 0; i < there; ++i) product.result[first + i] = whole[i];
}

template <typename Vector>
void ComputeGroups(const Product& product, int64_t begin, int64_t end) {
  alignas(64) float sums[kColumns];
  for (int64_t group = begin; group < end; ++group) {
    const int64_t first = group * kColumns;
    const float* packed = product.packed + first * product.terms;
    const int64_t there = product.columns - first < kColumns ? product.columns - first : kColumns;
    switch ((there + kStep - 1) / kStep) {
      case 1:
        MultiplyGroup<Vector, kStep>(product, packed, sums);
        break;
      case 2:
        MultiplyGroup<Vector, 2 * kStep>(product, packed, sums);
        break;
      case 3:
        MultiplyGroup<Vector, 3 * kStep>(product, packed, sums);
        break;
      default:
        MultiplyGroup<Vector, kColumns>(product, packed, sums);
    }
    for (int64_t i = 0; i < there; i += Vector::kLanes) {
      Finish<Vector>(product, sums + i, first + i, there - i);
    }
  }
}

}  // namespace
}  // namespace rows
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ROWS_KERNELS_IMPL_H_

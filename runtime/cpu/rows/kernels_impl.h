#ifndef RUNTIME_CPU_ROWS_KERNELS_IMPL_H_
#define RUNTIME_CPU_ROWS_KERNELS_IMPL_H_

#include <cstdint>

#include "runtime/cpu/rows/kernels.h"
#include "runtime/cpu/vectors/vector_math.h"

// The kernels for vectors of any width. Each file that includes this header has one width, and is
// compiled for the CPUs that have vectors of this width. All functions have internal linkage, so
// that the linker cannot use them on other CPUs.
//
// `Vector` is described in `vector_math.h`.

namespace tvm_interop {
namespace rows {
namespace {

// The number of terms in a partial sum. A group is some columns of the packed right matrix. This
// many rows of a group fit into the L2 cache of a core.
constexpr int64_t kTerms = 256;
// The number of rows that are multiplied at once, by up to `kWide` vectors. It is chosen so that
// the sums, the vectors and one more number fit into the registers.
constexpr int kRowsAtOnce = 6;
template <typename Vector>
constexpr int kWide = Vector::kLanes == 16 ? 4 : 2;

// Multiplies kRows rows by `wide` vectors of columns. `wide` is at most `kWide`.
template <typename Vector, int kRows>
void MultiplyRows(const float* left, int64_t stride, const float* right, int64_t wide,
                  int64_t terms, float* sums, int64_t right_stride, bool adds) {
  switch (wide) {
    case 1:
      return Multiply<Vector, kRows, 1, kTerms>(left, stride, right, terms, sums, kColumns,
                                                right_stride, adds);
    case 2:
      return Multiply<Vector, kRows, 2, kTerms>(left, stride, right, terms, sums, kColumns,
                                                right_stride, adds);
    default:
      if constexpr (kWide<Vector> > 2) {
        if (wide == 3) {
          return Multiply<Vector, kRows, 3, kTerms>(left, stride, right, terms, sums, kColumns,
                                                    right_stride, adds);
        }
        return Multiply<Vector, kRows, 4, kTerms>(left, stride, right, terms, sums, kColumns,
                                                  right_stride, adds);
      }
  }
}

// Multiplies `rows` rows, at most kRows of them, as `MultiplyRows` does.
template <typename Vector, int kRows>
void MultiplyUpToRows(int64_t rows, const float* left, int64_t stride, const float* right,
                      int64_t wide, int64_t terms, float* sums, int64_t right_stride, bool adds) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return MultiplyUpToRows<Vector, kRows - 1>(rows, left, stride, right, wide, terms, sums,
                                                 right_stride, adds);
    }
  }
  MultiplyRows<Vector, kRows>(left, stride, right, wide, terms, sums, right_stride, adds);
}

// Multiplies all rows by a group of `padded` columns. Some terms of the group are used for all rows
// before the next terms are read. So the group is read from memory only once.
template <typename Vector>
void MultiplyGroup(const Product& product, const float* packed, int64_t padded, float* sums) {
  for (int64_t begin = 0; begin < product.terms; begin += kTerms) {
    const int64_t terms = product.terms - begin < kTerms ? product.terms - begin : kTerms;
    const float* right = packed + begin * padded;
    for (int64_t row = 0; row < product.rows; row += kRowsAtOnce) {
      const float* left = product.left + row * product.terms + begin;
      const int64_t rows = product.rows - row < kRowsAtOnce ? product.rows - row : kRowsAtOnce;
      for (int64_t at = 0; at < padded; at += kWide<Vector> * Vector::kLanes) {
        const int64_t vectors = (padded - at) / Vector::kLanes;
        const int64_t wide = vectors < kWide<Vector> ? vectors : kWide<Vector>;
        MultiplyUpToRows<Vector, kRowsAtOnce>(rows, left, product.terms, right + at, wide, terms,
                                              sums + row * kColumns + at, padded, begin > 0);
      }
    }
  }
}

// Multiplies a single row by a group of kGroup columns. It reads all of the group in order.
template <typename Vector, int64_t kGroup>
void MultiplyByRow(const Product& product, const float* packed, float* sums) {
  Multiply<Vector, 1, kGroup / Vector::kLanes, kTerms>(product.left, product.terms, packed,
                                                       product.terms, sums, kGroup);
}

template <typename Vector>
void MultiplyByRow(const Product& product, const float* packed, int64_t padded, float* sums) {
  switch (padded / kStep) {
    case 1:
      return MultiplyByRow<Vector, kStep>(product, packed, sums);
    case 2:
      return MultiplyByRow<Vector, 2 * kStep>(product, packed, sums);
    case 3:
      return MultiplyByRow<Vector, 3 * kStep>(product, packed, sums);
    default:
      MultiplyByRow<Vector, kColumns>(product, packed, sums);
  }
}

// Writes `there` numbers of a row of the result, from the column `column` on. `there` is at most
// the number of lanes of a vector.
template <typename Vector>
void Finish(const Product& product, const float* sums, int64_t row, int64_t column, int64_t there) {
  alignas(64) float whole[Vector::kLanes];
  const auto load = [&](const float* from) {
    if (there >= Vector::kLanes) return Vector::Load(from);
    for (int64_t i = 0; i < Vector::kLanes; ++i) whole[i] = i < there ? from[i] : 0;
    return Vector::Load(whole);
  };
  const int64_t at = row * product.columns + column;
  auto x = Vector::Load(sums);
  if (product.bias != nullptr) x = Vector::Add(x, load(product.bias + column));
  if (product.addend != nullptr) x = Vector::Add(x, load(product.addend + at));
  x = VectorLast<Vector>(product.last, product.clip_low, product.clip_high, x);
  if (there >= Vector::kLanes) return Vector::Store(product.result + at, x);
  Vector::Store(whole, x);
  for (int64_t i = 0; i < there; ++i) product.result[at + i] = whole[i];
}

template <typename Vector>
void ComputeGroups(const Product& product, int64_t begin, int64_t end) {
  alignas(64) float sums[kMostRows * kColumns];
  for (int64_t group = begin; group < end; ++group) {
    const int64_t first = group * kColumns;
    const float* packed = product.packed + first * product.terms;
    const int64_t there = product.columns - first < kColumns ? product.columns - first : kColumns;
    const int64_t padded = (there + kStep - 1) / kStep * kStep;
    if (product.rows == 1) {
      MultiplyByRow<Vector>(product, packed, padded, sums);
    } else {
      MultiplyGroup<Vector>(product, packed, padded, sums);
    }
    for (int64_t row = 0; row < product.rows; ++row) {
      for (int64_t i = 0; i < there; i += Vector::kLanes) {
        Finish<Vector>(product, sums + row * kColumns + i, row, first + i, there - i);
      }
    }
  }
}

}  // namespace
}  // namespace rows
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ROWS_KERNELS_IMPL_H_

#ifndef RUNTIME_CPU_ATTENTION_KERNELS_IMPL_H_
#define RUNTIME_CPU_ATTENTION_KERNELS_IMPL_H_

#include <cstdint>

#include "runtime/cpu/attention/kernels.h"
#include "runtime/cpu/vectors/vector_math.h"

// The kernels for vectors of any width. Each file that includes this header has one width, and is
// compiled for the CPUs that have vectors of this width. All functions have internal linkage, so
// that the linker cannot use them on other CPUs.
//
// `Vector` is described in `vector_math.h`.

namespace tvm_interop {
namespace attention {
namespace {

constexpr int64_t kTerms = 256;  // Terms in a sum of products.
constexpr int kVectors = 2;      // Vectors in a row of a matrix product.
constexpr float kInfinity = __builtin_inff();

template <typename Vector>
struct Computes {
  using V = typename Vector::Type;
  static constexpr int kLanes = Vector::kLanes;
  static constexpr int kRows = Vector::kRows;
  static constexpr int kColumns = kVectors * kLanes;

  static int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  // Copies `there` numbers to `to`, and fills `to` with zeros up to `wide` numbers.
  static void CopyRow(const float* from, int64_t there, int64_t wide, float* to) {
    int64_t k = 0;
    for (; k + kLanes <= there; k += kLanes) Vector::Store(to + k, Vector::Load(from + k));
    for (; k < there; ++k) to[k] = from[k];
    for (; k < wide; ++k) to[k] = 0;
  }

  // Returns the width of the next block of a matrix that has `there` columns left.
  static int64_t Wide(int64_t there) { return there > kLanes ? kColumns : kLanes; }

  // Packs a matrix of `rows` rows and `columns` columns into blocks of columns. Reads the matrix in
  // the order in which it lies in memory, because it is seldom in the caches.
  static void PackColumns(const float* from, int64_t rows, int64_t columns, float* packed) {
    for (int64_t row = 0; row < rows; ++row) {
      float* block = packed;
      for (int64_t first = 0; first < columns; first += kColumns) {
        const int64_t there = Smaller(columns - first, kColumns), wide = Wide(there);
        CopyRow(from + first, there, wide, block + row * wide);
        block += rows * wide;
      }
      from += columns;
    }
  }

  // Packs the transpose of a matrix: the rows of the matrix become the columns of the blocks.
  static void PackRows(const float* from, int64_t rows, int64_t columns, float* packed) {
    for (int64_t first = 0; first < rows; first += kColumns) {
      const int64_t there = Smaller(rows - first, kColumns), wide = Wide(there);
      for (int64_t k = 0; k < there; ++k) {
        for (int64_t c = 0; c < columns; ++c) packed[c * wide + k] = from[c];
        from += columns;
      }
      for (int64_t k = there; k < wide; ++k) {
        for (int64_t c = 0; c < columns; ++c) packed[c * wide + k] = 0;
      }
      packed += columns * wide;
    }
  }

  static void Pack(const Sizes& sizes, const Head& head, float* packed) {
    if (sizes.keys_by_position) {
      PackRows(head.keys, sizes.positions, sizes.depth, packed);
    } else {
      PackColumns(head.keys, sizes.depth, sizes.positions, packed);
    }
    packed += RoundedUp(sizes.positions, kLanes) * sizes.depth;
    PackColumns(head.values, sizes.positions, sizes.width, packed);
  }

  // Multiplies `rows` rows by a packed block of `wide` columns.
  static void MultiplyRows(int64_t wide, int64_t rows, const float* left, int64_t stride,
                           const float* right, int64_t terms, float* to, int64_t to_stride) {
    if (wide > kLanes) {
      MultiplyBlock<kVectors>(rows, left, stride, right, terms, to, to_stride);
    } else {
      MultiplyBlock<1>(rows, left, stride, right, terms, to, to_stride);
    }
  }
  template <int kWide>
  static void MultiplyBlock(int64_t rows, const float* left, int64_t stride, const float* right,
                            int64_t terms, float* to, int64_t to_stride) {
    for (int64_t row = 0; row < rows; row += kRows) {
      MultiplyUpTo<Vector, kRows, kWide, kTerms>(rows - row, left + row * stride, stride, right,
                                                 terms, to + row * to_stride, to_stride);
    }
  }

  // Returns the largest number of a vector, or NaN if the first number is NaN.
  static float Largest(V numbers) {
    alignas(64) float all[kLanes];
    Vector::Store(all, numbers);
    float largest = all[0];
    for (int i = 1; i < kLanes; ++i) largest = all[i] > largest ? all[i] : largest;
    return largest;
  }

  static float Sum(V numbers) {
    alignas(64) float all[kLanes];
    Vector::Store(all, numbers);
    for (int step = kLanes / 2; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) all[i] += all[i + step];
    }
    return all[0];
  }

  // Scales the scores of a row and adds the mask, unless the mask is null.
  static void Mask(const Sizes& sizes, const float* mask, int64_t mask_column, float* scores) {
    if (mask == nullptr && sizes.scale == 1) return;
    const V scale = Vector::All(sizes.scale);
    const int64_t whole = sizes.positions / kLanes * kLanes;
    if (mask_column == 0) {
      const V same = Vector::All(mask == nullptr ? -0.0f : *mask);
      for (int64_t p = 0; p < sizes.positions; p += kLanes) {
        Vector::Store(scores + p, Vector::Add(Vector::Mul(Vector::Load(scores + p), scale), same));
      }
      return;
    }
    for (int64_t p = 0; p < whole; p += kLanes) {
      const V scaled = Vector::Mul(Vector::Load(scores + p), scale);
      Vector::Store(scores + p, Vector::Add(scaled, Vector::Load(mask + p)));
    }
    for (int64_t p = whole; p < sizes.positions; ++p) {
      scores[p] = scores[p] * sizes.scale + mask[p];
    }
  }

  // Replaces each score of a row by e to the power of the score minus the row's largest score, so
  // the largest power is 1. Returns 1 over the sum of the powers. As in the operator softmax, a row
  // becomes NaN if it has a NaN, or if all its scores are minus infinity.
  static float Powers(const Sizes& sizes, float* scores) {
    const int64_t padded = RoundedUp(sizes.positions, kLanes);
    for (int64_t p = sizes.positions; p < padded; ++p) scores[p] = -kInfinity;
    V largest = Vector::Load(scores);
    for (int64_t p = kLanes; p < padded; p += kLanes) {
      largest = Vector::Max(largest, Vector::Load(scores + p));
    }
    const V top = Vector::All(Largest(largest));
    const V limit = Vector::All(-87.0f);
    V sum = Vector::All(0);
    for (int64_t p = 0; p < padded; p += kLanes) {
      const V x = Vector::Sub(Vector::Load(scores + p), top);
      // Powers that are almost denormal numbers become 0. In particular, the power of minus
      // infinity is 0.
      const V power = Vector::ZeroBelow(limit, x, VectorExp<Vector>(x));
      Vector::Store(scores + p, power);
      sum = Vector::Add(sum, power);
    }
    return 1 / Sum(sum);
  }

  static void Compute(const Sizes& sizes, const Head& head, const float* packed, int64_t begin,
                      int64_t end, float* scratch) {
    const int64_t depth = sizes.depth, positions = sizes.positions, width = sizes.width;
    const int64_t stride = ScoresStride(kLanes, sizes);
    float* queries = scratch;
    float* scores = queries + sizes.rows * depth;
    float* block = scores + sizes.rows * stride;
    float* factors = block + sizes.rows * kColumns;
    for (int64_t first = begin; first < end; first += sizes.rows) {
      const int64_t rows = Smaller(end - first, sizes.rows);
      // The queries are seldom in the caches, so they are copied before the product reads them. If
      // the number of rows is odd, a row of zeros follows.
      CopyRow(head.queries + first * depth, rows * depth, RoundedUp(rows, 2) * depth, queries);
      const float* right = packed;
      for (int64_t p = 0; p < positions; p += kColumns) {
        const int64_t wide = Wide(positions - p);
        MultiplyRows(wide, rows, queries, depth, right, depth, scores + p, stride);
        right += wide * depth;
      }
      for (int64_t row = 0; row < rows; ++row) {
        const float* mask = head.mask;
        if (mask != nullptr) mask += (first + row) * head.mask_row;
        Mask(sizes, mask, head.mask_column, scores + row * stride);
        factors[row] = Powers(sizes, scores + row * stride);
      }
      for (int64_t w = 0; w < width; w += kColumns) {
        const int64_t there = Smaller(width - w, kColumns);
        const int64_t wide = Wide(there);
        MultiplyRows(wide, rows, scores, stride, right, positions, block, kColumns);
        right += wide * positions;
        for (int64_t row = 0; row < rows; ++row) {
          float* to = head.result + (first + row) * width + w;
          const float* made = block + row * kColumns;
          const V factor = Vector::All(factors[row]);
          int64_t k = 0;
          for (; k + kLanes <= there; k += kLanes) {
            Vector::Store(to + k, Vector::Mul(Vector::Load(made + k), factor));
          }
          for (; k < there; ++k) to[k] = made[k] * factors[row];
        }
      }
    }
  }
};

}  // namespace
}  // namespace attention
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ATTENTION_KERNELS_IMPL_H_

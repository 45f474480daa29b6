#ifndef RUNTIME_CPU_ATTENTION_KERNELS_H_
#define RUNTIME_CPU_ATTENTION_KERNELS_H_

// This header is included by files that are compiled for newer CPUs. It must not include inline
// functions of others: the linker could keep the copy that older CPUs cannot run.
#include <cstdint>

namespace tvm_interop {
namespace attention {

// The attention of one head: softmax(queries * keys^T * scale + mask) * values. Each matrix is
// contiguous.
struct Head {
  const float* queries = nullptr;  // (queries, depth)
  const float* keys = nullptr;     // (positions, depth), or (depth, positions)
  const float* values = nullptr;   // (positions, width)
  float* result = nullptr;         // (queries, width)
  // What is added to the scores; null if nothing is. The steps are 0 where all rows or all columns
  // have the same number, and `mask_column` is 1 otherwise.
  const float* mask = nullptr;
  int64_t mask_row = 0;
  int64_t mask_column = 0;
};

// The sizes that all heads share.
struct Sizes {
  int64_t queries = 0;            // Rows of the result.
  int64_t positions = 0;          // Keys, and values.
  int64_t depth = 0;              // Numbers in a query and in a key.
  int64_t width = 0;              // Numbers in a value.
  bool keys_by_position = false;  // Whether the keys are given as (positions, depth).
  float scale = 1;
  int64_t rows = 0;  // Queries whose scores are in scratch memory together, see `RowsAtOnce`.
};

// The kernels for one width of vectors.
struct Kernels {
  int lanes;    // Numbers in a vector.
  int columns;  // Columns of a matrix product that are computed together.
  int rows;     // Its rows.
  // Writes the keys and values of a head to `packed`, which has `PackedSize` numbers.
  void (*pack)(const Sizes& sizes, const Head& head, float* packed);
  // Computes the rows of the result from `begin` to `end`. `scratch` has `ScratchSize` numbers.
  void (*compute)(const Sizes& sizes, const Head& head, const float* packed, int64_t begin,
                  int64_t end, float* scratch);
};

// The functions have internal linkage, because the kernels call some of them: the linker could keep
// a copy that older CPUs cannot run.
static inline int64_t RoundedUp(int64_t number, int64_t step) {
  return (number + step - 1) / step * step;
}

// A row of scores is filled up to whole vectors. A vector more keeps the rows apart: rows at a
// distance of some powers of two would share few sets of a cache.
static inline int64_t ScoresStride(int64_t lanes, const Sizes& sizes) {
  return RoundedUp(sizes.positions, lanes) + lanes;
}

// The packed keys have, for each block of `columns` positions, a row for each of a key's numbers.
// The packed values have, for each block of `columns` of a value's numbers, a row for each
// position. A last block of no more columns than lanes is a single vector wide. Zeros fill up the
// last blocks.
static inline int64_t PackedSize(const Kernels& kernels, const Sizes& sizes) {
  return RoundedUp(sizes.positions, kernels.lanes) * sizes.depth +
         RoundedUp(sizes.width, kernels.lanes) * sizes.positions;
}

// Returns how many rows of scores fit into about 256 KB of the second cache. It is at least the
// rows of one matrix product, and at most eight times as many.
static inline int64_t RowsAtOnce(const Kernels& kernels, const Sizes& sizes) {
  const int64_t fit = (int64_t{1} << 16) / ScoresStride(kernels.lanes, sizes) / kernels.rows;
  const int64_t most = RoundedUp(sizes.queries, kernels.rows) / kernels.rows;
  const int64_t groups = fit < 1 ? 1 : fit > 8 ? 8 : fit;
  return (groups < most ? groups : most) * kernels.rows;
}

// The scratch memory has the queries, the scores and a block of the result, for `rows` rows.
static inline int64_t ScratchSize(const Kernels& kernels, const Sizes& sizes) {
  return sizes.rows * (sizes.depth + ScoresStride(kernels.lanes, sizes) + kernels.columns + 1);
}

// Kernels for CPUs with AVX-512, and for CPUs with AVX2 and FMA. Null where the compiler is for
// other CPUs.
const Kernels* Avx512Kernels();
const Kernels* Avx2Kernels();

}  // namespace attention
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ATTENTION_KERNELS_H_

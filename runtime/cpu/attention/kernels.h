#ifndef RUNTIME_CPU_ATTENTION_KERNELS_H_
#define RUNTIME_CPU_ATTENTION_KERNELS_H_

// Files that are compiled for newer CPUs include this header. So it must not include headers with
// inline functions: the linker could keep a copy of such a function that older CPUs cannot run.
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
  // The numbers that are added to the scores, or null. `mask_row` is the distance between two rows
  // of the mask, and 0 if the mask has one row for all queries. `mask_column` is 1, or 0 if the
  // mask has one column for all keys.
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

// The kernels of attention for one width of vectors.
struct Kernels {
  int lanes;    // Numbers in a vector.
  int columns;  // Columns of a matrix product that are computed together.
  int rows;     // Rows of a matrix product that are computed together.
  // Writes the keys and values of a head to `packed`, which has `PackedSize` numbers.
  void (*pack)(const Sizes& sizes, const Head& head, float* packed);
  // Computes the rows of the result from `begin` to `end`. `scratch` has `ScratchSize` numbers.
  void (*compute)(const Sizes& sizes, const Head& head, const float* packed, int64_t begin,
                  int64_t end, float* scratch);
};

// The functions below have internal linkage, because the kernels call some of them. Otherwise the
// linker could keep a copy that older CPUs cannot run.
static inline int64_t RoundedUp(int64_t number, int64_t step) {
  return (number + step - 1) / step * step;
}

// Returns the distance between two rows of scores. A row is padded to whole vectors, and the space
// of one more vector is left after it. Otherwise the distance could be a power of two, and all rows
// would have to share a few sets of the cache.
static inline int64_t ScoresStride(int64_t lanes, const Sizes& sizes) {
  return RoundedUp(sizes.positions, lanes) + lanes;
}

// Returns how many numbers the packed keys and values of a head have. The keys form a matrix with a
// column for each key, and the values form a matrix with a row for each value. Both matrices are
// divided into blocks of `columns` columns. If the columns that remain for the last block fit into
// one vector, this block is one vector wide. Zeros fill the last block up.
static inline int64_t PackedSize(const Kernels& kernels, const Sizes& sizes) {
  return RoundedUp(sizes.positions, kernels.lanes) * sizes.depth +
         RoundedUp(sizes.width, kernels.lanes) * sizes.positions;
}

// Returns how many rows of scores fit into about 256 KB of the L2 cache. The result is at least the
// number of rows of one matrix product, and at most eight times this number.
static inline int64_t RowsAtOnce(const Kernels& kernels, const Sizes& sizes) {
  const int64_t fit = (int64_t{1} << 16) / ScoresStride(kernels.lanes, sizes) / kernels.rows;
  const int64_t most = RoundedUp(sizes.queries, kernels.rows) / kernels.rows;
  const int64_t groups = fit < 1 ? 1 : fit > 8 ? 8 : fit;
  return (groups < most ? groups : most) * kernels.rows;
}

// The size of the scratch memory, which holds the queries, the scores and a block of the result,
// for `rows` rows.
static inline int64_t ScratchSize(const Kernels& kernels, const Sizes& sizes) {
  return sizes.rows * (sizes.depth + ScoresStride(kernels.lanes, sizes) + kernels.columns + 1);
}

// Kernels for CPUs with AVX-512, and for CPUs with AVX2 and FMA. Null if this library was compiled
// for CPUs of another architecture than x86-64.
const Kernels* Avx512Kernels();
const Kernels* Avx2Kernels();

}  // namespace attention
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ATTENTION_KERNELS_H_

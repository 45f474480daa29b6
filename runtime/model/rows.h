#ifndef RUNTIME_MODEL_ROWS_H_
#define RUNTIME_MODEL_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_interop {

// Where the rows of an input or output lie in memory. A row is `outer` pieces of `nbytes` bytes
// each, one in each step of the dimensions before that of the rows.
struct RowPieces {
  size_t outer = 0;  // 0 for a tensor without rows
  size_t nbytes = 0;
  size_t rows = 0;  // how many rows the tensor has

  bool exist() const { return outer > 0; }
};

// Returns the first dimension in which two shapes of the same rank differ; the rank if they are
// equal.
size_t DifferingAxis(const std::vector<int64_t>& shape, const std::vector<int64_t>& other);

// Returns where the rows of a tensor lie, given its shapes for two numbers of rows. The tensor of
// `shape` has `rows` rows. Its rows lie along the dimension that differs from `other`.
RowPieces PiecesOf(const std::vector<int64_t>& shape, const std::vector<int64_t>& other,
                   int64_t rows, size_t element_nbytes);

// Copies the `count` rows of `from` into the first rows of `to`, which has the pieces `pieces`, and
// fills the others with copies of the last row.
void FillUp(const RowPieces& pieces, size_t count, const void* from, void* to);
// Copies the first `count` rows of `from`, which has the pieces `pieces`, to `to`.
void CutOff(const RowPieces& pieces, size_t count, const void* from, void* to);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_ROWS_H_

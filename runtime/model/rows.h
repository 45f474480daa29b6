#ifndef RUNTIME_MODEL_ROWS_H_
#define RUNTIME_MODEL_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <string>
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

// What fills up the rows of an input, and what must hold for it. A mask is filled with 0. Its
// numbers must be from 0 to 1, and those of its first row, or of any row, must be 1.
enum class Filling { kLastRow, kZero, kMaskFirst, kMaskAny };

// Whether a tensor of the type called `type` can be a mask.
bool CanBeMask(const std::string& type);
// Writes 0 into all rows of `tensor` from number `count` on.
void FillWithZeros(const RowPieces& pieces, size_t count, void* tensor);
// Returns whether a mask of the type called `type` fulfils what `filling` asks for.
bool MaskFits(const RowPieces& pieces, Filling filling, const std::string& type, const void* mask);

// Copies the `count` rows of `from` into the first rows of `to`, which has the pieces `pieces`, and
// fills the others with copies of the last row.
void FillUp(const RowPieces& pieces, size_t count, const void* from, void* to);
// Copies the first `count` rows of `from`, which has the pieces `pieces`, to `to`.
void CutOff(const RowPieces& pieces, size_t count, const void* from, void* to);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_ROWS_H_

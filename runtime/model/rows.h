#ifndef RUNTIME_MODEL_ROWS_H_
#define RUNTIME_MODEL_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/manifest.h"

namespace tvm_interop {

// A model has at most this many ranges of rows, such as a batch and the length of a sequence.
constexpr size_t kMostRanges = 2;
// How many rows of each range a run has. The numbers of ranges that a model does not have are 0.
using RowCounts = std::array<size_t, kMostRanges>;

// Throws ModelError with `kInvalidArgument` unless the model has `count` ranges, at least one.
void CheckNumberOfRanges(const std::vector<RowRange>& ranges, size_t count);
// Names the dimension of a range for a message, as in " of `batch`".
std::string NameOf(const std::vector<RowRange>& ranges, size_t range);
// Returns the index of the shape that can run `rows`, which has one number for each range. For each
// range, the shape has the smallest number of rows that is large enough. Throws ModelError with
// `kInvalidArgument` if the model has more or fewer ranges, or if a number is out of its range.
size_t FindShape(const std::vector<RowRange>& ranges, const std::vector<int64_t>& rows);

// Where the rows of an input or output lie in memory. The tensor is seen as a tensor of the shape
// (`outer`, rows of one range, `between`, rows of the other range) with elements of `nbytes` bytes.
// If there is one range, `between` and the rows of the other range are 1.
struct RowPieces {
  struct Axis {
    int range = -1;   // the number of the range; -1 if there is none
    size_t rows = 1;  // how many rows the tensor has
  };
  size_t outer = 1;
  std::array<Axis, kMostRanges> axes;
  size_t between = 1;
  size_t nbytes = 0;

  // Whether this tensor has more rows than `counts` along any range.
  bool HasMoreThan(const RowCounts& counts) const;
  // Whether this tensor has more rows than `counts` along the range `range`.
  bool HasMoreThan(const RowCounts& counts, size_t range) const;
};

// Returns, for each range, the dimension whose size grows with the number of rows. The result is -1
// if there is none, and the rank if the shapes have different ranks. `shapes` has the shape of one
// input or output for each number of rows in `ranges`.
std::vector<int> AxesOf(const std::vector<const std::vector<int64_t>*>& shapes,
                        const std::vector<RowRange>& ranges);

// Returns where the rows of a tensor of `shape` lie. The tensor has `counts` rows. `axes` is the
// result of `AxesOf`.
RowPieces PiecesOf(const std::vector<int64_t>& shape, const std::vector<int>& axes,
                   const RowCounts& counts, size_t element_nbytes);

// How an input is padded to more rows, and the condition that the input must meet. kLastRow copies
// the last row, and has no condition. All other values are for masks. A mask is padded with 0 along
// the last range. The numbers of the mask must be from 0 to 1. They must be 1 in the mask's first
// row (kMaskFirst), in at least one row (kMaskAny) or in all rows (kMaskAll).
enum class Filling { kLastRow, kZero, kMaskFirst, kMaskAny, kMaskAll };

// Whether a tensor of the type called `type` can be a mask.
bool CanBeMask(const std::string& type);
// Writes 0 into the rows of `tensor` along `range`, from row number `count` to the last row.
void FillWithZeros(const RowPieces& pieces, size_t range, size_t count, void* tensor);
// Returns whether a mask of the type called `type` meets the condition of `filling` in its first
// `counts` rows. The condition is about the rows of `range`, and must hold for each row of the
// other range. For `kMaskAny`, a mask has one element for each pair of rows of the two ranges.
bool MaskFits(const RowPieces& pieces, const RowCounts& counts, size_t range, Filling filling,
              const std::string& type, const void* mask);

// Pads `from` to the size of `to`: copies `from`, which has `counts` rows, into the first rows of
// `to`, and fills the other rows of `to` with copies of the last row of `from`. `pieces` says where
// the rows of `to` lie.
void FillUp(const RowPieces& pieces, const RowCounts& counts, const void* from, void* to);
// Copies the first `counts` rows of `from` to `to`. `pieces` says where the rows of `from` lie.
void CutOff(const RowPieces& pieces, const RowCounts& counts, const void* from, void* to);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_ROWS_H_

#include "runtime/model/rows.h"

#include <algorithm>
#include <cstring>

namespace tvm_interop {

size_t DifferingAxis(const std::vector<int64_t>& shape, const std::vector<int64_t>& other) {
  const auto differing = std::mismatch(shape.begin(), shape.end(), other.begin()).first;
  return static_cast<size_t>(differing - shape.begin());
}

RowPieces PiecesOf(const std::vector<int64_t>& shape, const std::vector<int64_t>& other,
                   int64_t rows, size_t element_nbytes) {
  RowPieces pieces;
  pieces.rows = static_cast<size_t>(rows);
  const size_t axis = DifferingAxis(shape, other);
  if (axis == shape.size()) return pieces;
  pieces.outer = 1;
  for (size_t d = 0; d < axis; ++d) pieces.outer *= static_cast<size_t>(shape[d]);
  pieces.nbytes = element_nbytes * static_cast<size_t>(shape[axis] / rows);
  for (size_t d = axis + 1; d < shape.size(); ++d) pieces.nbytes *= static_cast<size_t>(shape[d]);
  return pieces;
}

void FillUp(const RowPieces& pieces, size_t count, const void* from, void* to) {
  for (size_t i = 0; i < pieces.outer; ++i) {
    const char* given = static_cast<const char*>(from) + i * count * pieces.nbytes;
    char* begin = static_cast<char*>(to) + i * pieces.rows * pieces.nbytes;
    std::memcpy(begin, given, count * pieces.nbytes);
    const char* last = begin + (count - 1) * pieces.nbytes;
    for (size_t row = count; row < pieces.rows; ++row) {
      std::memcpy(begin + row * pieces.nbytes, last, pieces.nbytes);
    }
  }
}

void CutOff(const RowPieces& pieces, size_t count, const void* from, void* to) {
  for (size_t i = 0; i < pieces.outer; ++i) {
    std::memcpy(static_cast<char*>(to) + i * count * pieces.nbytes,
                static_cast<const char*>(from) + i * pieces.rows * pieces.nbytes,
                count * pieces.nbytes);
  }
}

}  // namespace tvm_interop

#include "runtime/model/rows.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace tvm_interop {
namespace {

template <typename T>
bool MaskOfTypeFits(const RowPieces& pieces, Filling filling, const T* mask) {
  const size_t width = pieces.nbytes / sizeof(T);
  const size_t count = pieces.outer * pieces.rows * width;
  const auto is_one = [](T number) { return number == T{1}; };
  // The comparison is false for a float that is no number.
  if (!std::all_of(mask, mask + count, [](T n) { return n >= T{0} && n <= T{1}; })) return false;
  if (filling == Filling::kMaskAny) return std::any_of(mask, mask + count, is_one);
  for (size_t i = 0; i < pieces.outer; ++i) {
    const T* first = mask + i * pieces.rows * width;
    if (!std::all_of(first, first + width, is_one)) return false;
  }
  return true;
}

using Check = bool (*)(const RowPieces& pieces, Filling filling, const void* mask);

template <typename T>
bool CheckAs(const RowPieces& pieces, Filling filling, const void* mask) {
  return MaskOfTypeFits(pieces, filling, static_cast<const T*>(mask));
}

const std::map<std::string, Check>& Checks() {
  // A bool is read as a byte.
  static const std::map<std::string, Check> checks{
      {"bool", CheckAs<uint8_t>},   {"uint8", CheckAs<uint8_t>}, {"int8", CheckAs<int8_t>},
      {"int32", CheckAs<int32_t>},  {"int64", CheckAs<int64_t>}, {"float32", CheckAs<float>},
      {"float64", CheckAs<double>},
  };
  return checks;
}

}  // namespace

bool CanBeMask(const std::string& type) { return Checks().count(type) > 0; }

bool MaskFits(const RowPieces& pieces, Filling filling, const std::string& type, const void* mask) {
  return filling < Filling::kMaskFirst || Checks().at(type)(pieces, filling, mask);
}

void FillWithZeros(const RowPieces& pieces, size_t count, void* tensor) {
  for (size_t i = 0; i < pieces.outer; ++i) {
    char* begin = static_cast<char*>(tensor) + i * pieces.rows * pieces.nbytes;
    std::memset(begin + count * pieces.nbytes, 0, (pieces.rows - count) * pieces.nbytes);
  }
}

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

#include "runtime/model/rows.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "runtime/model/error.h"

namespace tvm_interop {
namespace {

// The number of rows along `axis`. `counts` has the number of rows of each range.
size_t RowsOf(const RowPieces::Axis& axis, const RowCounts& counts) {
  return axis.range < 0 ? 1 : counts[static_cast<size_t>(axis.range)];
}

// Returns the index of an element of a tensor that has `rows` rows along both axes.
size_t IndexOf(const RowPieces& pieces, const std::array<size_t, kMostRanges>& rows, size_t outer,
               size_t row, size_t between, size_t other_row) {
  return ((outer * rows[0] + row) * pieces.between + between) * rows[1] + other_row;
}

std::array<size_t, kMostRanges> AllRows(const RowPieces& pieces) {
  return {pieces.axes[0].rows, pieces.axes[1].rows};
}

std::array<size_t, kMostRanges> FirstRows(const RowPieces& pieces, const RowCounts& counts) {
  return {RowsOf(pieces.axes[0], counts), RowsOf(pieces.axes[1], counts)};
}

template <typename T>
bool MaskOfTypeFits(const RowPieces& pieces, const RowCounts& counts, size_t range, Filling filling,
                    const T* mask) {
  const size_t width = pieces.nbytes / sizeof(T);
  const auto all = AllRows(pieces), given = FirstRows(pieces, counts);
  const size_t positions_axis = pieces.axes[0].range == static_cast<int>(range) ? 0 : 1;
  // How many ones the mask has in each row of the range that is not `range`.
  std::vector<size_t> ones(given[1 - positions_axis]);
  for (size_t o = 0; o < pieces.outer; ++o) {
    for (size_t i = 0; i < given[0]; ++i) {
      for (size_t m = 0; m < pieces.between; ++m) {
        for (size_t j = 0; j < given[1]; ++j) {
          const T* begin = mask + IndexOf(pieces, all, o, i, m, j) * width;
          const size_t position = positions_axis == 0 ? i : j;
          for (size_t k = 0; k < width; ++k) {
            // A mask with NaN is refused too, because each comparison with NaN is false.
            if (!(begin[k] >= T{0} && begin[k] <= T{1})) return false;
            const bool is_one = begin[k] == T{1};
            if (filling == Filling::kMaskFirst && position == 0 && !is_one) return false;
            if (filling == Filling::kMaskAll && !is_one) return false;
            ones[positions_axis == 0 ? j : i] += is_one ? 1 : 0;
          }
        }
      }
    }
  }
  return filling != Filling::kMaskAny ||
         std::all_of(ones.begin(), ones.end(), [](size_t count) { return count > 0; });
}

using Check = bool (*)(const RowPieces& pieces, const RowCounts& counts, size_t range,
                       Filling filling, const void* mask);

template <typename T>
bool CheckAs(const RowPieces& pieces, const RowCounts& counts, size_t range, Filling filling,
             const void* mask) {
  return MaskOfTypeFits(pieces, counts, range, filling, static_cast<const T*>(mask));
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

void CheckNumberOfRanges(const std::vector<RowRange>& ranges, size_t count) {
  if (ranges.empty()) {
    throw ModelError(ErrorCode::kInvalidArgument,
                     "the model was not compiled for a range of rows: run it whole");
  }
  if (ranges.size() == count) return;
  std::string names;
  for (const RowRange& range : ranges) names += " `" + range.dimension + "`";
  throw ModelError(ErrorCode::kInvalidArgument, "the model has " + std::to_string(ranges.size()) +
                                                    " ranges," + names + ", and there are " +
                                                    std::to_string(count) +
                                                    " numbers of rows: give one for each");
}

std::string NameOf(const std::vector<RowRange>& ranges, size_t range) {
  return " of `" + ranges[range].dimension + "`";
}

size_t FindShape(const std::vector<RowRange>& ranges, const std::vector<int64_t>& rows) {
  CheckNumberOfRanges(ranges, rows.size());
  for (size_t r = 0; r < ranges.size(); ++r) {
    const auto [least, most] = std::minmax_element(ranges[r].sizes.begin(), ranges[r].sizes.end());
    if (rows[r] < *least || rows[r] > *most) {
      throw ModelError(ErrorCode::kInvalidArgument,
                       "the number of rows" + NameOf(ranges, r) + " is " + std::to_string(rows[r]) +
                           ", and the model was compiled for " + std::to_string(*least) + " to " +
                           std::to_string(*most) + ": compile it for a range with this number");
    }
  }
  // There is a shape for each combination of numbers. So each range takes its smallest number that
  // is large enough.
  const auto is_better = [&](size_t one, size_t other) {
    for (const RowRange& range : ranges) {
      if (range.sizes[one] != range.sizes[other]) return range.sizes[one] < range.sizes[other];
    }
    return false;
  };
  size_t found = ranges[0].sizes.size();
  for (size_t i = 0; i < ranges[0].sizes.size(); ++i) {
    bool fits = true;
    for (size_t r = 0; r < ranges.size(); ++r) fits = fits && ranges[r].sizes[i] >= rows[r];
    if (fits && (found == ranges[0].sizes.size() || is_better(i, found))) found = i;
  }
  return found;
}

bool RowPieces::HasMoreThan(const RowCounts& counts) const {
  return RowsOf(axes[0], counts) < axes[0].rows || RowsOf(axes[1], counts) < axes[1].rows;
}

bool RowPieces::HasMoreThan(const RowCounts& counts, size_t range) const {
  return std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) {
    return axis.range == static_cast<int>(range) && counts[range] < axis.rows;
  });
}

bool CanBeMask(const std::string& type) { return Checks().count(type) > 0; }

bool MaskFits(const RowPieces& pieces, const RowCounts& counts, size_t range, Filling filling,
              const std::string& type, const void* mask) {
  return filling < Filling::kMaskFirst || Checks().at(type)(pieces, counts, range, filling, mask);
}

void FillWithZeros(const RowPieces& pieces, size_t range, size_t count, void* tensor) {
  const auto all = AllRows(pieces);
  const bool is_first = pieces.axes[0].range == static_cast<int>(range);
  // The tensor's memory consists of `repeats` pieces. In each piece, the rows to set to zero are
  // contiguous.
  const size_t repeats = is_first ? pieces.outer : pieces.outer * all[0] * pieces.between;
  const size_t nbytes = is_first ? pieces.between * all[1] * pieces.nbytes : pieces.nbytes;
  const size_t rows = is_first ? all[0] : all[1];
  for (size_t i = 0; i < repeats; ++i) {
    char* begin = static_cast<char*>(tensor) + i * rows * nbytes;
    std::memset(begin + count * nbytes, 0, (rows - count) * nbytes);
  }
}

std::vector<int> AxesOf(const std::vector<const std::vector<int64_t>*>& shapes,
                        const std::vector<RowRange>& ranges) {
  const std::vector<int64_t>& first = *shapes[0];
  std::vector<int> axes(ranges.size(), -1);
  for (size_t r = 0; r < ranges.size(); ++r) {
    for (size_t i = 1; i < shapes.size(); ++i) {
      bool differs_alone = true;  // whether the other ranges have the same size
      for (size_t other = 0; other < ranges.size(); ++other) {
        const std::vector<int64_t>& sizes = ranges[other].sizes;
        differs_alone = differs_alone && (other == r) == (sizes[i] != sizes[0]);
      }
      if (!differs_alone) continue;
      if (shapes[i]->size() != first.size()) {
        axes[r] = static_cast<int>(first.size());
        break;
      }
      const auto differing = std::mismatch(first.begin(), first.end(), shapes[i]->begin()).first;
      if (differing != first.end()) axes[r] = static_cast<int>(differing - first.begin());
      break;  // All shapes grow alike, which `CheckRanges` makes sure of.
    }
  }
  return axes;
}

RowPieces PiecesOf(const std::vector<int64_t>& shape, const std::vector<int>& axes,
                   const RowCounts& counts, size_t element_nbytes) {
  RowPieces pieces;
  size_t known = 0, elements = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    size_t each = static_cast<size_t>(shape[d]);
    const auto found = std::find(axes.begin(), axes.end(), static_cast<int>(d));
    if (found != axes.end()) {
      const auto range = static_cast<size_t>(found - axes.begin());
      (known == 0 ? pieces.outer : pieces.between) = elements;
      pieces.axes[known++] = {static_cast<int>(range), counts[range]};
      each /= counts[range];
      elements = 1;
    }
    elements *= each;
  }
  pieces.nbytes = elements * element_nbytes;
  return pieces;
}

void FillUp(const RowPieces& pieces, const RowCounts& counts, const void* from, void* to) {
  const auto all = AllRows(pieces), given = FirstRows(pieces, counts);
  for (size_t o = 0; o < pieces.outer; ++o) {
    for (size_t i = 0; i < all[0]; ++i) {
      for (size_t m = 0; m < pieces.between; ++m) {
        const size_t source = IndexOf(pieces, given, o, std::min(i, given[0] - 1), m, 0);
        char* begin = static_cast<char*>(to) + IndexOf(pieces, all, o, i, m, 0) * pieces.nbytes;
        std::memcpy(begin, static_cast<const char*>(from) + source * pieces.nbytes,
                    given[1] * pieces.nbytes);
        const char* last = begin + (given[1] - 1) * pieces.nbytes;
        for (size_t j = given[1]; j < all[1]; ++j) {
          std::memcpy(begin + j * pieces.nbytes, last, pieces.nbytes);
        }
      }
    }
  }
}

void CutOff(const RowPieces& pieces, const RowCounts& counts, const void* from, void* to) {
  const auto all = AllRows(pieces), given = FirstRows(pieces, counts);
  for (size_t o = 0; o < pieces.outer; ++o) {
    for (size_t i = 0; i < given[0]; ++i) {
      for (size_t m = 0; m < pieces.between; ++m) {
        const size_t target = IndexOf(pieces, given, o, i, m, 0);
        const size_t source = IndexOf(pieces, all, o, i, m, 0);
        std::memcpy(static_cast<char*>(to) + target * pieces.nbytes,
                    static_cast<const char*>(from) + source * pieces.nbytes,
                    given[1] * pieces.nbytes);
      }
    }
  }
}

}  // namespace tvm_interop

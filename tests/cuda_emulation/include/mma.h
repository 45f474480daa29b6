// Tensor cores: fragments of matrices that the 32 lanes of a warp hold together (`nvcuda::wmma`).
//
// Each lane holds an equal share of a fragment's numbers. CUDA does not say which numbers a lane
// holds. So a lane holds different numbers in the two orders in which the threads run. Products are
// summed in float32, one after the other; CUDA leaves the order open.
#pragma once

#include "device_functions.h"

namespace cuda_emulation {

// Waits until all 32 lanes of the warp are at this line, which every operation on fragments needs.
inline void MeetWholeWarp(const char* function, int line) {
  if (Vote(kAllLanes, false, line).lanes != kAllLanes) {
    Fail("at line " + std::to_string(line) + ", not all lanes of a warp take part in `" + function +
         "`");
  }
}

// Checks that all lanes of a warp give the same matrix in memory, with the alignment that CUDA
// requires.
template <typename T>
void CheckMatrix(const char* function, const T* matrix, unsigned stride, int line) {
  const std::string at = "at line " + std::to_string(line) + ", `" + function + "` is given ";
  if (Shuffle(kAllLanes, matrix, 0, line) != matrix ||
      Shuffle(kAllLanes, stride, 0, line) != stride) {
    Fail(at + "another matrix by some lanes of a warp");
  }
  if (reinterpret_cast<std::uintptr_t>(matrix) % 32 != 0) {
    Fail(at + "an address that is not a multiple of 32 bytes");
  }
  if (stride * sizeof(T) % 16 != 0) {
    Fail(at + "rows that do not begin at multiples of 16 bytes");
  }
}

constexpr int kMostFragmentNumbers = 32 * 16;
// The two factors of a warp's matrix product. Each lane writes its share of the numbers, and then
// reads the numbers of all lanes.
struct Factors {
  float left[kMostFragmentNumbers], right[kMostFragmentNumbers];
};
inline Factors factors_of_warps[1024 / warpSize];

}  // namespace cuda_emulation

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int m, int n, int k>
struct ShapeOf;
template <int m, int n, int k>
struct ShapeOf<matrix_a, m, n, k> {
  static constexpr int kRows = m, kColumns = k;
};
template <int m, int n, int k>
struct ShapeOf<matrix_b, m, n, k> {
  static constexpr int kRows = k, kColumns = n;
};
template <int m, int n, int k>
struct ShapeOf<accumulator, m, n, k> {
  static constexpr int kRows = m, kColumns = n;
};

template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
  static_assert(!std::is_integral_v<T>, "products of integers are not emulated");
  static constexpr int kRows = ShapeOf<Use, m, n, k>::kRows;
  static constexpr int kColumns = ShapeOf<Use, m, n, k>::kColumns;
  static constexpr int num_elements = kRows * kColumns / warpSize;
  static_assert(kRows * kColumns <= cuda_emulation::kMostFragmentNumbers);
  using element_type = T;

  T x[num_elements];

  // Returns the place in the matrix, counted row by row, of the number `i` of this lane's share.
  static int PlaceOf(int i) {
    const int lane = cuda_emulation::Lane();
    return i * warpSize + (cuda_emulation::is_reverse ? warpSize - 1 - lane : lane);
  }
  // Returns the place in memory of the number `i` of this lane's share, for a matrix whose rows or
  // columns lie `stride` numbers apart.
  static std::size_t OffsetOf(int i, std::size_t stride, bool is_by_rows) {
    const std::size_t row = PlaceOf(i) / kColumns, column = PlaceOf(i) % kColumns;
    return is_by_rows ? row * stride + column : column * stride + row;
  }
};

template <typename Fragment, typename Value>
void fill_fragment(Fragment& to, Value value) {
  for (auto& number : to.x) number = static_cast<typename Fragment::element_type>(value);
}

template <typename Use, int m, int n, int k, typename T, typename Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& to, const T* from, unsigned stride,
                      int line = __builtin_LINE()) {
  static_assert(!std::is_void_v<Layout>, "a fragment of sums is loaded with the layout in memory");
  cuda_emulation::MeetWholeWarp("load_matrix_sync", line);
  cuda_emulation::CheckMatrix("load_matrix_sync", from, stride, line);
  for (int i = 0; i < to.num_elements; ++i) {
    to.x[i] = from[to.OffsetOf(i, stride, std::is_same_v<Layout, row_major>)];
  }
}

template <int m, int n, int k, typename T>
void load_matrix_sync(fragment<accumulator, m, n, k, T>& to, const T* from, unsigned stride,
                      layout_t layout, int line = __builtin_LINE()) {
  cuda_emulation::MeetWholeWarp("load_matrix_sync", line);
  cuda_emulation::CheckMatrix("load_matrix_sync", from, stride, line);
  for (int i = 0; i < to.num_elements; ++i) {
    to.x[i] = from[to.OffsetOf(i, stride, layout == mem_row_major)];
  }
}

template <int m, int n, int k, typename T>
void store_matrix_sync(T* to, const fragment<accumulator, m, n, k, T>& from, unsigned stride,
                       layout_t layout, int line = __builtin_LINE()) {
  cuda_emulation::MeetWholeWarp("store_matrix_sync", line);
  cuda_emulation::CheckMatrix("store_matrix_sync", to, stride, line);
  for (int i = 0; i < from.num_elements; ++i) {
    to[from.OffsetOf(i, stride, layout == mem_row_major)] = from.x[i];
  }
}

// The sum of `sums` and the product of `left` and `right`.
template <int m, int n, int k, typename T, typename LeftLayout, typename RightLayout, typename To,
          typename From>
void mma_sync(fragment<accumulator, m, n, k, To>& to,
              const fragment<matrix_a, m, n, k, T, LeftLayout>& left,
              const fragment<matrix_b, m, n, k, T, RightLayout>& right,
              const fragment<accumulator, m, n, k, From>& sums, int line = __builtin_LINE()) {
  using namespace cuda_emulation;
  Factors& factors = factors_of_warps[ThreadNumber() / warpSize];
  for (int i = 0; i < left.num_elements; ++i) {
    factors.left[left.PlaceOf(i)] = static_cast<float>(left.x[i]);
  }
  for (int i = 0; i < right.num_elements; ++i) {
    factors.right[right.PlaceOf(i)] = static_cast<float>(right.x[i]);
  }
  MeetWholeWarp("mma_sync", line);
  for (int i = 0; i < to.num_elements; ++i) {
    const int row = to.PlaceOf(i) / n, column = to.PlaceOf(i) % n;
    float sum = static_cast<float>(sums.x[i]);
    for (int j = 0; j < k; ++j) sum += factors.left[row * k + j] * factors.right[j * n + column];
    to.x[i] = static_cast<To>(sum);
  }
  MeetWholeWarp("mma_sync", line);  // Until now, others may have read the factors.
}

}  // namespace wmma
}  // namespace nvcuda

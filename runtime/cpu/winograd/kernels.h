#ifndef RUNTIME_CPU_WINOGRAD_KERNELS_H_
#define RUNTIME_CPU_WINOGRAD_KERNELS_H_

// Files that are compiled for newer CPUs include this header. So it must not include headers with
// inline functions: the linker could keep a copy of such a function that older CPUs cannot run.
#include <cstdint>

#include "runtime/cpu/vectors/last.h"

namespace tvm_interop {
namespace winograd {

// A tile of the result has 4x4 pixels. It is computed from 6x6 pixels of the data.
constexpr int kTile = 4;
constexpr int kDataTile = 6;
constexpr int kProducts = kDataTile * kDataTile;

// An image in memory, N,C,H,W. `data` points to the first number of the image's first row.
struct Image {
  void* data = nullptr;
  bool is_narrow = false;  // Whether the numbers are bfloat16. If not, they are float32.
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t block = 1;  // Channels that lie side by side; 1 for a plain image.
  int64_t plane = 0;  // Numbers from one block of channels to the next.
  int64_t batch = 0;  // Numbers from one image to the next.
};

// A convolution with a window of 3x3 and strides of 1.
struct Convolution {
  Image source;
  Image addend;  // `data` is null if nothing is added.
  Image result;
  const float* weights = nullptr;  // Packed, see `PackedSize`.
  const float* bias = nullptr;     // Null if there is no bias.
  int64_t images = 0;
  int64_t top = 0, left = 0;  // Rows and columns of padding before the data.
  int64_t dilation_y = 1, dilation_x = 1;
  Last last = Last::kNothing;
  float clip_low = 0, clip_high = 0;

  // The pixels of the result that are `dilation` apart are treated as a separate image, which is
  // divided into tiles.
  int64_t tiles_y = 0, tiles_x = 0;
  int64_t tiles() const { return images * tiles_y * tiles_x; }
};

// The kernels of Winograd's algorithm for one width of vectors.
struct Kernels {
  // How many numbers a vector has. A block of a blocked image has a multiple of this number of
  // channels.
  int lanes;
  // The products of this many channels of the result are computed together.
  int columns;
  // Computes the tiles from `begin` to `end`. `scratch` has `ScratchSize` numbers for this number
  // of tiles.
  void (*compute)(const Convolution& conv, int64_t begin, int64_t end, float* scratch);
};

// Returns how many numbers the packed weights have. The result's channels are divided into groups
// of `columns` channels. Each group has a matrix for each of the 36 products. The matrix has a row
// for each channel of the data, with one factor for each channel of the group. Zeros fill the rows
// of the last group up to whole vectors.
inline int64_t PackedSize(const Kernels& kernels, int64_t channels, int64_t made) {
  const int64_t lanes = kernels.lanes;
  return (made + lanes - 1) / lanes * lanes * kProducts * channels;
}

// Returns how many numbers of scratch memory `compute` needs for `tiles` tiles.
inline int64_t ScratchSize(const Kernels& kernels, int64_t channels, int64_t tiles) {
  const int64_t lanes = kernels.lanes;
  const int64_t padded = (channels + lanes - 1) / lanes * lanes;
  const int64_t rows = (tiles + 1) / 2 * 2;
  return kProducts * rows * (padded + kernels.columns);
}

// The points at which the polynomials are evaluated are 0, `kNear`, -`kNear`, `kFar`, -`kFar` and
// infinity.
constexpr double kNear = 0.70710678118654752440;
constexpr double kFar = 1.41421356237309504880;

// Kernels for CPUs with AVX-512, and for CPUs with AVX2 and FMA. Null if this library was compiled
// for CPUs of another architecture than x86-64.
const Kernels* Avx512Kernels();
const Kernels* Avx2Kernels();

}  // namespace winograd
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_WINOGRAD_KERNELS_H_

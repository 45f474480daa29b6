#ifndef RUNTIME_CPU_WINOGRAD_KERNELS_IMPL_H_
#define RUNTIME_CPU_WINOGRAD_KERNELS_IMPL_H_

#include <cstdint>

#include "runtime/cpu/vectors/vector_math.h"
#include "runtime/cpu/winograd/kernels.h"

// The kernels for vectors of any width. Each file that includes this header has one width, and is
// compiled for the CPUs that have vectors of this width. All functions have internal linkage, so
// that the linker cannot use them on other CPUs.
//
// `Vector` is described in `vector_math.h`.

namespace tvm_interop {
namespace winograd {
namespace {

constexpr int64_t kChannels = 32;  // Channels in a sum of products.
constexpr int kVectors = 2;        // Vectors of the result's channels in a product of matrices.

template <typename Vector>
struct Computes {
  using V = typename Vector::Type;
  static constexpr int kLanes = Vector::kLanes;
  static constexpr int kRows = Vector::kRows;
  static constexpr int kColumns = kVectors * kLanes;

  // Where a tile's first pixel lies in the result.
  struct Place {
    int64_t image, y, x;
  };

  static int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  static Place PlaceOf(const Convolution& conv, int64_t tile) {
    const int64_t x = tile % conv.tiles_x, y = tile / conv.tiles_x % conv.tiles_y;
    const int64_t dx = conv.dilation_x, dy = conv.dilation_y;
    return {tile / (conv.tiles_x * conv.tiles_y), y / dy * dy * kTile + y % dy,
            x / dx * dx * kTile + x % dx};
  }

  // The position of a channel's first number, counted in numbers from the image's first.
  static int64_t OffsetOf(const Image& image, int64_t index, int64_t channel) {
    return index * image.batch + channel / image.block * image.plane + channel % image.block;
  }

  // Loads the vector that begins at the position `at` of an image.
  static V LoadAt(const Image& image, int64_t at) {
    if (image.is_narrow) return Vector::LoadWide(static_cast<const uint16_t*>(image.data) + at);
    return Vector::Load(static_cast<const float*>(image.data) + at);
  }

  static void StoreAt(const Image& image, int64_t at, V numbers) {
    if (image.is_narrow) {
      Vector::StoreNarrow(static_cast<uint16_t*>(image.data) + at, numbers);
    } else {
      Vector::Store(static_cast<float*>(image.data) + at, numbers);
    }
  }

  // Loads the vector of `there` channels of a plain image. Zeros fill up the vector.
  static V Gather(const Image& image, int64_t at, int64_t there) {
    if (image.is_narrow) {
      alignas(64) uint16_t words[kLanes];
      Collect(static_cast<const uint16_t*>(image.data) + at, image.plane, there, words);
      return Vector::LoadWide(words);
    }
    alignas(64) float numbers[kLanes];
    Collect(static_cast<const float*>(image.data) + at, image.plane, there, numbers);
    return Vector::Load(numbers);
  }

  template <typename Number>
  static void Collect(const Number* from, int64_t step, int64_t there, Number* to) {
    for (int64_t c = 0; c < kLanes; ++c) to[c] = c < there ? from[c * step] : 0;
  }

  // Stores the first `there` numbers of a vector to the channels of an image. If the image is
  // blocked, zeros fill up the block.
  static void Scatter(const Image& image, int64_t at, int64_t there, V vector) {
    if (image.is_narrow) {
      alignas(64) uint16_t words[kLanes];
      Vector::StoreNarrow(words, vector);
      Distribute(words, there, image, static_cast<uint16_t*>(image.data) + at);
    } else {
      alignas(64) float numbers[kLanes];
      Vector::Store(numbers, vector);
      Distribute(numbers, there, image, static_cast<float*>(image.data) + at);
    }
  }

  template <typename Number>
  static void Distribute(const Number* from, int64_t there, const Image& image, Number* to) {
    if (image.block > 1) {
      for (int64_t c = 0; c < kLanes; ++c) to[c] = c < there ? from[c] : 0;
    } else {
      for (int64_t c = 0; c < Smaller(kLanes, there); ++c) to[c * image.plane] = from[c];
    }
  }

  // Loads the numbers of a pixel's channels; zeros for channels that the image does not have.
  static V LoadPixel(const Image& image, int64_t at, int64_t there) {
    return image.block > 1 ? LoadAt(image, at) : Gather(image, at, there);
  }

  static void StorePixel(const Image& image, int64_t at, int64_t there, V numbers) {
    if (image.block > 1 && there >= kLanes) {
      StoreAt(image, at, numbers);
    } else {
      Scatter(image, at, there, numbers);
    }
  }

  // Multiplies the matrix B^T of Winograd's algorithm by the six vectors at `in`, which lie `step`
  // numbers apart.
  static inline __attribute__((always_inline)) void ToPoints(const float* in, int64_t step,
                                                             V* out) {
    const V d0 = Vector::Load(in), d1 = Vector::Load(in + step), d2 = Vector::Load(in + 2 * step);
    const V d3 = Vector::Load(in + 3 * step), d4 = Vector::Load(in + 4 * step);
    const V d5 = Vector::Load(in + 5 * step);
    constexpr float kNear2 = kNear * kNear, kFar2 = kFar * kFar;
    const V sum = Vector::All(kNear2 + kFar2), product = Vector::All(kNear2 * kFar2);
    const V near = Vector::All(kNear), far = Vector::All(kFar);
    const V near2 = Vector::All(kNear2), far2 = Vector::All(kFar2);
    out[0] = Vector::Fma(product, d0, Vector::NegFma(sum, d2, d4));
    const V even_near = Vector::NegFma(far2, d2, d4), odd_near = Vector::NegFma(far2, d1, d3);
    out[1] = Vector::Fma(near, odd_near, even_near);
    out[2] = Vector::NegFma(near, odd_near, even_near);
    const V even_far = Vector::NegFma(near2, d2, d4), odd_far = Vector::NegFma(near2, d1, d3);
    out[3] = Vector::Fma(far, odd_far, even_far);
    out[4] = Vector::NegFma(far, odd_far, even_far);
    out[5] = Vector::Fma(product, d1, Vector::NegFma(sum, d3, d5));
  }

  // Multiplies the matrix A^T of Winograd's algorithm by six vectors.
  static inline __attribute__((always_inline)) void FromPoints(const V* m, V* out) {
    constexpr float kNear2 = kNear * kNear, kFar2 = kFar * kFar;
    const V sum_near = Vector::Add(m[1], m[2]), difference_near = Vector::Sub(m[1], m[2]);
    const V sum_far = Vector::Add(m[3], m[4]), difference_far = Vector::Sub(m[3], m[4]);
    out[0] = Vector::Add(m[0], Vector::Add(sum_near, sum_far));
    out[1] = Vector::Fma(Vector::All(kNear), difference_near,
                         Vector::Mul(Vector::All(kFar), difference_far));
    out[2] = Vector::Fma(Vector::All(kNear2), sum_near, Vector::Mul(Vector::All(kFar2), sum_far));
    out[3] = Vector::Fma(Vector::All(kNear * kNear2), difference_near,
                         Vector::Fma(Vector::All(kFar * kFar2), difference_far, m[5]));
  }

  // Copies the data of a tile, with zeros for pixels outside of the image, to `tile`.
  static void CopyTile(const Convolution& conv, const Place& place, int64_t channel, float* tile) {
    const Image& source = conv.source;
    const int64_t from = OffsetOf(source, place.image, channel);
    const int64_t there = Smaller(source.channels - channel, kLanes);
    for (int i = 0; i < kProducts; ++i) {
      float* to = tile + i * kLanes;
      const int64_t y = place.y - conv.top + i / kDataTile * conv.dilation_y;
      const int64_t x = place.x - conv.left + i % kDataTile * conv.dilation_x;
      if (y < 0 || y >= source.height || x < 0 || x >= source.width) {
        Vector::Store(to, Vector::All(0));
      } else {
        Vector::Store(to, LoadPixel(source, from + (y * source.width + x) * source.block, there));
      }
    }
  }

  // Writes B^T d B, where d is the data of a tile. The 36 numbers of the result lie `step` numbers
  // apart.
  static void TransformTile(const Convolution& conv, const Place& place, int64_t channel, float* to,
                            int64_t step) {
    alignas(64) float copy[kProducts * kLanes];
    alignas(64) float columns[kProducts * kLanes];
    const Image& source = conv.source;
    const int64_t y = place.y - conv.top, x = place.x - conv.left;
    const int64_t last_y = y + (kDataTile - 1) * conv.dilation_y;
    const int64_t last_x = x + (kDataTile - 1) * conv.dilation_x;
    const float* from = copy;
    int64_t row = kDataTile * kLanes, column = kLanes;
    const bool is_inside = y >= 0 && x >= 0 && last_y < source.height && last_x < source.width;
    if (source.block > 1 && is_inside && !source.is_narrow) {
      from = static_cast<const float*>(source.data) + OffsetOf(source, place.image, channel) +
             (y * source.width + x) * source.block;
      row = conv.dilation_y * source.width * source.block;
      column = conv.dilation_x * source.block;
    } else {
      CopyTile(conv, place, channel, copy);
    }
    V out[kDataTile];
    for (int j = 0; j < kDataTile; ++j) {
      ToPoints(from + j * column, row, out);
      for (int i = 0; i < kDataTile; ++i) {
        Vector::Store(columns + (i * kDataTile + j) * kLanes, out[i]);
      }
    }
    for (int i = 0; i < kDataTile; ++i) {
      ToPoints(columns + i * kDataTile * kLanes, kLanes, out);
      for (int j = 0; j < kDataTile; ++j) Vector::Store(to + (i * kDataTile + j) * step, out[j]);
    }
  }

  // Computes a tile of the result from its products, which lie `step` numbers apart.
  static void FinishTile(const Convolution& conv, const Place& place, int64_t channel,
                         const float* from, int64_t step) {
    const Image& result = conv.result;
    const Image& addend = conv.addend;
    V rows[kTile][kDataTile];
    V m[kDataTile], made[kTile];
    for (int j = 0; j < kDataTile; ++j) {
      for (int i = 0; i < kDataTile; ++i) m[i] = Vector::Load(from + (i * kDataTile + j) * step);
      FromPoints(m, made);
      for (int i = 0; i < kTile; ++i) rows[i][j] = made[i];
    }
    const int64_t there = result.channels - channel;
    const int64_t to = OffsetOf(result, place.image, channel);
    const int64_t added = OffsetOf(addend, place.image, channel);
    alignas(64) float biases[kLanes];
    for (int64_t c = 0; c < kLanes; ++c) {
      biases[c] = conv.bias != nullptr && c < there ? conv.bias[channel + c] : 0;
    }
    const V bias = Vector::Load(biases);
    for (int i = 0; i < kTile; ++i) {
      const int64_t y = place.y + i * conv.dilation_y;
      if (y >= result.height) return;
      FromPoints(rows[i], made);
      for (int j = 0; j < kTile; ++j) {
        const int64_t x = place.x + j * conv.dilation_x;
        if (x >= result.width) break;
        const int64_t pixel = y * result.width + x;
        V sum = Vector::Add(made[j], bias);
        if (addend.data != nullptr) {
          sum = Vector::Add(sum, LoadPixel(addend, added + pixel * addend.block, there));
        }
        const V ended = VectorLast<Vector>(conv.last, conv.clip_low, conv.clip_high, sum);
        StorePixel(result, to + pixel * result.block, there, ended);
      }
    }
  }

  // Computes the 36 matrix products of `rows` tiles for kWide vectors of the result's channels.
  template <int kWide>
  static void MultiplyRows(int64_t channels, int64_t rows, int64_t padded, const float* weights,
                           const float* data, float* products) {
    for (int product = 0; product < kProducts; ++product) {
      for (int64_t row = 0; row < rows; row += kRows) {
        MultiplyUpTo<Vector, kRows, kWide, kChannels>(
            rows - row, data + (product * rows + row) * padded, padded, weights, channels,
            products + (product * rows + row) * kColumns, kColumns);
      }
      weights += kWide * kLanes * channels;
    }
  }

  static void Compute(const Convolution& conv, int64_t begin, int64_t end, float* scratch) {
    const int64_t channels = conv.source.channels, made = conv.result.channels;
    const int64_t padded = (channels + kLanes - 1) / kLanes * kLanes;
    const int64_t rows = (end - begin + 1) / 2 * 2;
    float* products = scratch + kProducts * rows * padded;
    for (int64_t tile = begin; tile < end; ++tile) {
      const Place place = PlaceOf(conv, tile);
      for (int64_t c = 0; c < channels; c += kLanes) {
        TransformTile(conv, place, c, scratch + (tile - begin) * padded + c, rows * padded);
      }
    }
    // If the number of tiles is odd, there is one more row than there are tiles. This row holds
    // arbitrary numbers, and its products are never read.
    const float* weights = conv.weights;
    const int64_t block = conv.result.block;
    const int64_t written = (made + block - 1) / block * block;
    for (int64_t first = 0; first < written; first += kColumns) {
      if (made - first > kLanes) {
        MultiplyRows<kVectors>(channels, rows, padded, weights, scratch, products);
      } else if (made > first) {
        MultiplyRows<1>(channels, rows, padded, weights, scratch, products);
      }
      weights += kProducts * kColumns * channels;
      for (int64_t tile = begin; tile < end; ++tile) {
        const Place place = PlaceOf(conv, tile);
        for (int k = 0; k < kVectors; ++k) {
          const int64_t channel = first + k * kLanes;
          if (channel >= written) break;
          FinishTile(conv, place, channel, products + (tile - begin) * kColumns + k * kLanes,
                     rows * kColumns);
        }
      }
    }
  }
};

}  // namespace
}  // namespace winograd
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_WINOGRAD_KERNELS_IMPL_H_

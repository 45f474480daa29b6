#include "runtime/cpu/winograd/conv.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <tuple>

#include "runtime/cpu/packed_weight.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/vectors/detect.h"
#include "runtime/cpu/vectors/last_of.h"
#include "runtime/cpu/winograd/kernels.h"

namespace tvm_interop {
namespace winograd {
namespace {

// The largest numbers of tiles that are transformed together. The data of a few tiles stay in the
// L2 cache, which is quick. If the weights do not fit into the L2 cache, more tiles are transformed
// together, so that the weights are read less often.
constexpr int64_t kFewTiles = 12;
constexpr int64_t kManyTiles = 24;
constexpr int64_t kManyWeights = int64_t{1} << 20;

// Returns the fastest kernels for these layouts, or null if this CPU has none. The vectors of
// AVX-512 do not fit blocks of 8 channels.
const Kernels* KernelsFor(const OpDescription& op) {
  const bool is_narrow = std::count(op.layouts.begin(), op.layouts.end(), Layout::kBlocked8) > 0;
  if (HasAvx512() && !is_narrow) return Avx512Kernels();
  return HasAvx2() ? Avx2Kernels() : nullptr;
}

// Returns the matrix G of Winograd's algorithm. It has a row for each point at which polynomials
// are evaluated. The row has three factors, one for each coefficient of a polynomial of degree 2.
std::vector<double> Factors() {
  const double points[] = {0, kNear, -kNear, kFar, -kFar};
  std::vector<double> factors;
  for (double point : points) {
    double product = 1;
    for (double other : points) product *= other == point ? 1 : point - other;
    factors.insert(factors.end(), {1 / product, point / product, point * point / product});
  }
  factors.insert(factors.end(), {0, 0, 1});  // The point at infinity.
  return factors;
}

// Writes the transformed weights G g G^T of each 3x3 window g, in the order that `PackedSize`
// describes. G is the matrix of `Factors`.
void Pack(const Kernels& kernels, const float* windows, int64_t channels, int64_t made, float* to) {
  const std::vector<double> factors = Factors();
  for (int64_t first = 0; first < made; first += kernels.columns) {
    const int64_t wide = std::min<int64_t>(kernels.columns, made - first);
    const int64_t padded = (wide + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t k = 0; k < wide; ++k) {
        const float* window = windows + ((first + k) * channels + c) * 9;
        double half[kDataTile][3];
        for (int i = 0; i < kDataTile; ++i) {
          const double* row = &factors[i * 3];
          for (int x = 0; x < 3; ++x) {
            half[i][x] = row[0] * window[x] + row[1] * window[3 + x] + row[2] * window[6 + x];
          }
        }
        for (int product = 0; product < kProducts; ++product) {
          const double* column = &factors[product % kDataTile * 3];
          const double* row = half[product / kDataTile];
          to[(product * channels + c) * padded + k] =
              static_cast<float>(row[0] * column[0] + row[1] * column[1] + row[2] * column[2]);
        }
      }
    }
    to += kProducts * channels * padded;
  }
}

class Conv : public LibraryKernel {
 public:
  Conv(const WinogradConv2d& op, int threads, const std::vector<KernelArgument>& args)
      : kernels_(*KernelsFor(op)), threads_(threads), ending_(op.ending), args_(args) {
    const size_t last = op.shapes.size() - 1;
    conv_.source = ImageOf(op, 0);
    if (op.ending.has_sum) conv_.addend = ImageOf(op, last - 1);
    conv_.result = ImageOf(op, last);
    conv_.images = op.shapes[0][0];
    conv_.top = op.window.padding[0];
    conv_.left = op.window.padding[1];
    conv_.dilation_y = op.window.dilation[0];
    conv_.dilation_x = op.window.dilation[1];
    conv_.last = LastOf(op.ending.activation);
    conv_.clip_low = op.ending.clip_low;
    conv_.clip_high = op.ending.clip_high;
    conv_.tiles_y = Tiles(conv_.result.height, conv_.dilation_y);
    conv_.tiles_x = Tiles(conv_.result.width, conv_.dilation_x);
    if (op.is_cut(0)) {
      first_row_ = op.cut[2] * conv_.source.width * conv_.source.block;
      const int64_t whole = op.cut[3] * conv_.source.width * conv_.source.block;
      conv_.source.batch = conv_.source.batch / conv_.source.plane * whole;
      conv_.source.plane = whole;
    }
    const int64_t weights = PackedSize(kernels_, conv_.source.channels, conv_.result.channels);
    const int64_t most = weights > kManyWeights ? kManyTiles : kFewTiles;
    const int64_t blocks = std::max<int64_t>((conv_.tiles() + most - 1) / most, 1);
    tiles_at_once_ = (conv_.tiles() + blocks - 1) / blocks;
    weights_bytes_ = static_cast<size_t>(weights) * sizeof(float);
    scratch_.Set(static_cast<size_t>(ScratchSize(kernels_, conv_.source.channels, tiles_at_once_)) *
                 sizeof(float));
  }

  void Run() override {
    if (!args_[1].is_constant) Repack();
    const size_t last = args_.size() - 1;
    conv_.source.data = BytesOf(args_[0]) + first_row_ * (conv_.source.is_narrow ? 2 : 4);
    if (ending_.has_sum) conv_.addend.data = BytesOf(args_[last - 1]);
    conv_.result.data = BytesOf(args_[last]);
    if (ending_.has_bias) conv_.bias = FloatsOf(args_[2]);
    conv_.weights = weights_.data();
    const int64_t blocks = (conv_.tiles() + tiles_at_once_ - 1) / tiles_at_once_;
    const int tasks = static_cast<int>(std::min<int64_t>(blocks, std::max(threads_, 1)));
    const int failed = tasks == 1 ? Task(0, 1, this) : RunParallelLoop(Task, this, tasks);
    if (failed != 0) throw std::runtime_error("winograd: out of memory");
  }

  void Repack() override {
    const int64_t channels = conv_.source.channels, made = conv_.result.channels;
    weights_.Update(
        args_[1], static_cast<size_t>(made * channels) * 9 * sizeof(float),
        Form{channels, made, kernels_.lanes}, weights_bytes_,
        [&](const float* windows, float* to) { Pack(kernels_, windows, channels, made, to); });
  }

  std::string implementation() const override {
    return kernels_.lanes == 16 ? "winograd:avx512" : "winograd:avx2";
  }
  int num_reorders() const override { return 0; }

 private:
  // The form in which weights are packed: the number of channels of the data, the number of
  // channels of the result, and the width of vectors.
  using Form = std::tuple<int64_t, int64_t, int>;

  static Image ImageOf(const OpDescription& op, size_t argument) {
    const std::vector<int64_t>& shape = op.shapes[argument];
    Image image;
    image.is_narrow = op.stored_type(argument) == DataType::kBfloat16;
    image.channels = shape[1];
    image.height = shape[2];
    image.width = shape[3];
    image.block = BlockOf(op.layouts[argument]);
    image.plane = shape[2] * shape[3] * image.block;
    image.batch = (shape[1] + image.block - 1) / image.block * image.plane;
    return image;
  }

  static int64_t Tiles(int64_t size, int64_t dilation) {
    const int64_t apart = (size + dilation - 1) / dilation;
    return (apart + kTile - 1) / kTile * dilation;
  }

  // Computes the tiles that belong to task `task`.
  static int Task(int task, int tasks, void* data) {
    const Conv& self = *static_cast<Conv*>(data);
    const int64_t tiles = self.conv_.tiles(), step = self.tiles_at_once_;
    const int64_t blocks = (tiles + step - 1) / step;
    try {
      const ScratchLease lease(self.scratch_);  // Each task has its own.
      float* scratch = reinterpret_cast<float*>(lease.data());
      const int64_t end = std::min(blocks * (task + 1) / tasks * step, tiles);
      for (int64_t i = blocks * task / tasks * step; i < end; i += step) {
        self.kernels_.compute(self.conv_, i, std::min(i + step, end), scratch);
      }
    } catch (const std::exception&) {
      return 1;
    }
    return 0;
  }

  const Kernels& kernels_;
  const int threads_;
  const Ending ending_;
  const std::vector<KernelArgument> args_;
  Convolution conv_;
  int64_t first_row_ = 0;  // The position of the data's first row in a larger image.
  int64_t tiles_at_once_ = 1;
  size_t weights_bytes_ = 0;
  ScratchNeed scratch_;  // For one task.
  PackedWeight<Form> weights_;
};

// Returns why the kernels cannot read or write the tensors of `op`, or an empty string.
std::string WhyNotStored(const OpDescription& op) {
  if (op.dtype != DataType::kFloat32) return "does not multiply numbers of float32";
  const size_t last = op.shapes.size() - 1;
  for (size_t i = 0; i <= last; ++i) {
    const bool is_image = i == 0 || i == last || (op.ends().has_sum && i == last - 1);
    const DataType type = op.stored_type(i);
    if (type != DataType::kFloat32 && !(is_image && type == DataType::kBfloat16)) {
      return is_image ? "has an image that is not of float32 or bfloat16"
                      : "has a weight or bias that is not of float32";
    }
  }
  return "";
}

}  // namespace

std::string WhyNot(const OpDescription& op) {
  const std::string wrong_type = WhyNotStored(op);
  if (!wrong_type.empty()) return wrong_type;
  const std::string wrong_end = WhyNotLast(op.ends().activation);
  if (!wrong_end.empty()) return wrong_end;
  if (op.layouts[1] != Layout::kPlain) return "has a weight that is not plain";
  if (KernelsFor(op) == nullptr) return "needs a CPU with AVX2 and FMA";
  return "";
}

std::unique_ptr<LibraryKernel> MakeConv(const WinogradConv2d& op, int threads,
                                        const std::vector<KernelArgument>& args) {
  return std::make_unique<Conv>(op, threads, args);
}

}  // namespace winograd
}  // namespace tvm_interop

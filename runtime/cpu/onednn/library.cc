#include "runtime/cpu/onednn/library.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace {

using namespace onednn;  // NOLINT: this file is about nothing else.

// Whether kernels of this name add up in one order, however large their team is. Those that stand
// on a general matrix product do not, nor do the convolutions called `brgconv`; of what we have not
// met, we assume the worst.
bool IsSureOfItsBits(const std::string& implementation) {
  for (const char* sure : {"jit", "brg:", "brdgmm_dw:", "ref:", "simple"}) {
    if (implementation.rfind(sure, 0) == 0) return true;
  }
  return false;
}

class OneDnnLibrary : public KernelLibrary {
 public:
  explicit OneDnnLibrary(const std::string& path) : api_(Api::Load(path)) {
    Engine engine = nullptr;
    Check(api_.engine_create(&engine, kCpu, 0), "a CPU engine");
    engine_ = {engine, api_.engine_destroy};
  }

  std::string name() const override { return "onednn"; }

  std::string version() const override {
    const Version& version = *api_.version();
    return std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
           std::to_string(version.patch);
  }

  std::string WhyUnsupported(const OpDescription& op) const override {
    const std::string malformed = WhyMalformed(op);
    if (!malformed.empty()) return malformed;
    const std::string mistyped = WhyMistyped(op);
    if (!mistyped.empty()) return mistyped;
    // Rounded up, oneDNN would count what hangs over the padding's edge as padding too.
    const bool is_mean = op.op == "avg_pool2d" || op.op == "quantised_avg_pool2d";
    const int rows = IsQuantised(op) ? 1 : 2;
    if (is_mean && op.counts_padding) {
      for (int axis : {0, 1}) {
        const int64_t reach = (op.shapes.back()[rows + axis] - 1) * op.strides[axis] +
                              (op.window[axis] - 1) * op.dilation[axis] + 1;
        if (reach > op.shapes[0][rows + axis] + op.padding[axis] + op.padding[2 + axis]) {
          return "`" + op.op + "` rounds its output up and counts padding";
        }
      }
    }
    return "";
  }

  std::unique_ptr<LibraryKernel> Prepare(const OpDescription& op, int threads,
                                         const std::vector<KernelArgument>& args) override {
    const std::string why = WhyUnsupported(op);
    if (!why.empty()) throw std::runtime_error(why);
    if (args.size() != op.shapes.size()) {
      throw std::runtime_error("`" + op.op + "` was given " + std::to_string(args.size()) +
                               " tensors for " + std::to_string(op.shapes.size()));
    }
    auto kernel = Make(op, threads, args);
    // Sums of integers are the same in any order.
    const bool gets_team =
        threads == 1 || IsQuantised(op) || IsSureOfItsBits(kernel->implementation());
    return gets_team ? std::move(kernel) : Make(op, 1, args);
  }

 private:
  static std::string WhyMistypedIntegers(const OpDescription& op) {
    using Type = tvm_interop::DataType;
    const size_t last = op.shapes.size() - 1;
    const auto is_byte = [&](size_t i) {
      return op.stored_type(i) == Type::kInt8 || op.stored_type(i) == Type::kUint8;
    };
    if (!is_byte(0)) return "`" + op.op + "` has data that is not of 8 bits";
    if (op.op == "quantised_max_pool2d" || op.op == "quantised_avg_pool2d") {
      return op.stored_type(0) == op.stored_type(1) ? "" : "`" + op.op + "` changes the type";
    }
    if (op.stored_type(1) != Type::kInt8) return "`" + op.op + "` has a weight that is not int8";
    for (size_t i = 2; i < last; ++i) {
      if (op.has_sum && i == last - 1) continue;
      if (op.stored_type(i) != Type::kFloat32) return "`" + op.op + "` has scales not of float32";
    }
    if (op.has_sum && !is_byte(last - 1)) {
      return "`" + op.op + "` adds a tensor that is not of 8 bits";
    }
    const bool is_float = op.stored_type(last) == Type::kFloat32;
    return is_float || is_byte(last) ? "" : "`" + op.op + "` has a result of another type";
  }

  // Factors of products, and tensors that operators hand on, may be of bfloat16.
  static std::string WhyMistyped(const OpDescription& op) {
    using Type = tvm_interop::DataType;
    if (IsQuantised(op)) return WhyMistypedIntegers(op);
    const bool multiplies = op.op == "conv2d" || op.op == "matmul";
    if (op.dtype == Type::kFloat16) {
      return "`" + op.op + "` is not of float32 or bfloat16";
    }
    if (op.dtype == Type::kBfloat16 && !multiplies)
      return "`" + op.op + "` has no factors to round";
    for (size_t i = 0; i < op.shapes.size(); ++i) {
      const Type type = op.stored_type(i);
      if (type != Type::kFloat32 && type != Type::kBfloat16) {
        return "`" + op.op + "` has a tensor of float16 or of integers";
      }
      const bool is_shift = op.has_bias && i == 2;
      const bool is_norm = op.op == "layer_norm" && (i == 1 || i == 2);
      if ((is_shift || is_norm) && op.stored_type(i) != Type::kFloat32) {
        return "`" + op.op + "` has a bias or scale that is not of float32";
      }
    }
    return "";
  }

  std::unique_ptr<LibraryKernel> Make(const OpDescription& op, int threads,
                                      const std::vector<KernelArgument>& args) {
    const TeamGuard team(api_, threads);
    return Maker(api_, engine_.get(), op, threads, args).Make();
  }

  Api api_;
  Owned<Engine> engine_;
};

}  // namespace

std::unique_ptr<KernelLibrary> LoadOneDnn(const std::string& path) {
  return std::make_unique<OneDnnLibrary>(path);
}

}  // namespace tvm_interop

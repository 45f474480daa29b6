#include "runtime/core/operators/conv2d.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "runtime/core/owned.h"
#include "runtime/cuda/choosing_library.h"
#include "runtime/cuda/cudnn/api.h"
#include "runtime/cuda/cudnn/library.h"

namespace tvm_interop {
namespace {

using namespace cudnn;  // NOLINT: this file is about nothing else.

void Check(const Api& api, int status, const char* call) {
  if (status == kSuccess) return;
  throw std::runtime_error(std::string("`") + call + "` failed: " + api.GetErrorString(status));
}
#define TVM_INTEROP_CUDNN(api, function, ...) \
  Check(api, (api).function(__VA_ARGS__), "cudnn" #function)

int Int(int64_t number) { return static_cast<int>(number); }

// Returns the arithmetic that cuDNN may use for the products of a convolution.
MathType MathTypeOf(const Conv2d& op) {
  if (op.dtype == DataType::kFloat16) return kTensorOpMath;
  return op.allow_tf32 ? kDefaultMath : kFmaMath;
}

// Whether a convolution may use the arithmetic `math`, which cuDNN proposes. `most` is the result
// of `MathTypeOf` for the convolution.
bool IsAllowed(int math, MathType most) {
  return most == kFmaMath ? math == kFmaMath : math != kTensorOpMathAllowConversion;
}

// An algorithm of cuDNN for one convolution.
struct Algorithm {
  int number = 0;
  // The arithmetic of the algorithm. `workspace_nbytes` holds only for this arithmetic.
  int math_type = kDefaultMath;
  // Whether the convolution's own kernel also computes bias, sum and activation. If false, later
  // kernels compute them.
  bool is_fused = false;
  size_t workspace_nbytes = 0;
  std::string refused = "";
};

// The descriptors of a convolution, in the form that cuDNN needs.
class Descs {
 public:
  Descs(const Api& api, const Conv2d& op)
      : api_(api), data_type_(op.dtype == DataType::kFloat16 ? cudnn::kHalf : cudnn::kFloat) {
    const std::vector<int64_t>& weight = op.shapes[1];
    data = Tensor(op.shapes.front());
    output = Tensor(op.shapes.back());
    bias = Tensor({1, weight[0], 1, 1});

    FilterDesc made_filter = nullptr;
    TVM_INTEROP_CUDNN(api_, CreateFilterDescriptor, &made_filter);
    filter = {made_filter, api_.DestroyFilterDescriptor};
    TVM_INTEROP_CUDNN(api_, SetFilter4dDescriptor, made_filter, data_type_, kNchw, Int(weight[0]),
                      Int(weight[1]), Int(weight[2]), Int(weight[3]));

    ConvolutionDesc made = nullptr;
    TVM_INTEROP_CUDNN(api_, CreateConvolutionDescriptor, &made);
    convolution = {made, api_.DestroyConvolutionDescriptor};
    TVM_INTEROP_CUDNN(api_, SetConvolution2dDescriptor, made, Int(op.window.padding[0]),
                      Int(op.window.padding[1]), Int(op.window.strides[0]),
                      Int(op.window.strides[1]), Int(op.window.dilation[0]),
                      Int(op.window.dilation[1]), kCrossCorrelation, cudnn::kFloat);
    TVM_INTEROP_CUDNN(api_, SetConvolutionGroupCount, made, Int(op.groups));
    TVM_INTEROP_CUDNN(api_, SetConvolutionMathType, made, MathTypeOf(op));

    ActivationDesc made_activation = nullptr;
    TVM_INTEROP_CUDNN(api_, CreateActivationDescriptor, &made_activation);
    activation = {made_activation, api_.DestroyActivationDescriptor};
    const bool is_relu = op.ending.activation == Activation::kRelu;
    TVM_INTEROP_CUDNN(api_, SetActivationDescriptor, made_activation,
                      is_relu ? cudnn::kRelu : cudnn::kIdentity, kNotPropagateNan, 0.0);
  }

  Owned<TensorDesc> data, output, bias;
  Owned<FilterDesc> filter;
  Owned<ConvolutionDesc> convolution;
  Owned<ActivationDesc> activation;

 private:
  Owned<TensorDesc> Tensor(const std::vector<int64_t>& shape) const {
    TensorDesc desc = nullptr;
    TVM_INTEROP_CUDNN(api_, CreateTensorDescriptor, &desc);
    Owned<TensorDesc> owned{desc, api_.DestroyTensorDescriptor};
    TVM_INTEROP_CUDNN(api_, SetTensor4dDescriptor, desc, kNchw, data_type_, Int(shape[0]),
                      Int(shape[1]), Int(shape[2]), Int(shape[3]));
    return owned;
  }

  const Api& api_;
  TensorType data_type_;
};

// One convolution of a model. `Use` sets the algorithm that has been chosen.
class CudnnConvolution : public CudaLibraryKernel {
 public:
  using Choice = Algorithm;

  CudnnConvolution(const Api& api, const OpDescription& op, const std::vector<void*>& args)
      : CudnnConvolution(api, dynamic_cast<const Conv2d&>(op), args) {}

  CudnnConvolution(const Api& api, const Conv2d& op, const std::vector<void*>& args)
      : api_(api),
        descs_(api, op),
        data_(args[0]),
        weight_(args[1]),
        bias_(op.ending.has_bias ? args[2] : nullptr),
        sum_(op.ending.has_sum ? args[args.size() - 2] : nullptr),
        output_(args.back()),
        has_relu_(op.ending.activation == Activation::kRelu),
        most_math_(MathTypeOf(op)) {}

  // Returns the algorithms to choose from, in cuDNN's own order.
  std::vector<Algorithm> Candidates(const CudaStream& stream) const {
    std::array<ForwardAlgorithmPerf, kNumForwardAlgorithms> perfs;
    int number = 0;
    TVM_INTEROP_CUDNN(api_, GetConvolutionForwardAlgorithm_v7, HandleOf(stream), descs_.data.get(),
                      descs_.filter.get(), descs_.convolution.get(), descs_.output.get(),
                      kNumForwardAlgorithms, &number, perfs.data());
    std::vector<Algorithm> candidates;
    for (int i = 0; i < number; ++i) {
      const ForwardAlgorithmPerf& perf = perfs[i];
      const bool is_known =
          std::any_of(candidates.begin(), candidates.end(), [&](const Algorithm& known) {
            return known.number == perf.algorithm && known.math_type == perf.math_type;
          });
      if (perf.status != kSuccess || perf.determinism != kDeterministic || is_known ||
          !IsAllowed(perf.math_type, most_math_)) {
        continue;
      }
      // If there is no activation, cuDNN's fused call supports only `kImplicitPrecompGemm`.
      if (bias_ != nullptr && (has_relu_ || perf.algorithm == kImplicitPrecompGemm)) {
        candidates.push_back({perf.algorithm, perf.math_type, true, perf.workspace_nbytes});
      }
      candidates.push_back({perf.algorithm, perf.math_type, false, perf.workspace_nbytes});
    }
    if (candidates.empty()) {
      throw std::runtime_error(
          "cuDNN has no algorithm for this convolution that always gives the same bits");
    }
    return candidates;
  }

  void Use(const Algorithm& algorithm) { algorithm_ = algorithm; }

  void Launch(const CudaStream& stream) override {
    Launch(stream, algorithm_, stream.resources->Workspace(algorithm_.workspace_nbytes));
  }

  // Launches the convolution with the given algorithm and workspace.
  void Launch(const CudaStream& stream, const Algorithm& algorithm, void* workspace) const {
    const cuda::DeviceGuard guard(stream.device);
    TVM_INTEROP_CUDNN(api_, SetConvolutionMathType, descs_.convolution.get(), algorithm.math_type);
    if (algorithm.is_fused) {
      LaunchFused(HandleOf(stream), algorithm, workspace);
    } else {
      LaunchInTurn(HandleOf(stream), algorithm, workspace);
    }
  }

  size_t workspace_nbytes() const override { return algorithm_.workspace_nbytes; }

  std::string implementation() const override { return NameOf(algorithm_) + algorithm_.refused; }

  std::string NameOf(const Algorithm& algorithm) const {
    std::string name = "algorithm " + std::to_string(algorithm.number);
    if (algorithm.is_fused) name += ", fused";
    if (algorithm.math_type != most_math_) {
      name += ", math type " + std::to_string(algorithm.math_type);
    }
    return name;
  }

 private:
  struct StreamHandle {
    StreamHandle(const Api& api, const CudaStream& stream) {
      const cuda::DeviceGuard guard(stream.device);
      Handle handle = nullptr;
      TVM_INTEROP_CUDNN(api, Create, &handle);
      owned = {handle, api.Destroy};
      TVM_INTEROP_CUDNN(api, SetStream, handle, stream.handle);
    }
    Owned<Handle> owned;
  };

  Handle HandleOf(const CudaStream& stream) const {
    const auto make = [&] { return std::make_shared<StreamHandle>(api_, stream); };
    return stream.resources->Handle(&api_, make).owned.get();
  }

  void LaunchFused(Handle handle, const Algorithm& algorithm, void* workspace) const {
    // cuDNN's fused call always wants a tensor to add. If the operator adds no tensor, the call
    // gets the output with a factor of zero.
    TVM_INTEROP_CUDNN(api_, ConvolutionBiasActivationForward, handle, &kOne, descs_.data.get(),
                      data_, descs_.filter.get(), weight_, descs_.convolution.get(),
                      algorithm.number, workspace, algorithm.workspace_nbytes,
                      sum_ != nullptr ? &kOne : &kZero, descs_.output.get(),
                      sum_ != nullptr ? sum_ : output_, descs_.bias.get(), bias_,
                      descs_.activation.get(), descs_.output.get(), output_);
  }

  void LaunchInTurn(Handle handle, const Algorithm& algorithm, void* workspace) const {
    TensorDesc output = descs_.output.get();
    TVM_INTEROP_CUDNN(api_, ConvolutionForward, handle, &kOne, descs_.data.get(), data_,
                      descs_.filter.get(), weight_, descs_.convolution.get(), algorithm.number,
                      workspace, algorithm.workspace_nbytes, &kZero, output, output_);
    if (bias_ != nullptr) {
      TVM_INTEROP_CUDNN(api_, AddTensor, handle, &kOne, descs_.bias.get(), bias_, &kOne, output,
                        output_);
    }
    if (sum_ != nullptr) {
      TVM_INTEROP_CUDNN(api_, AddTensor, handle, &kOne, output, sum_, &kOne, output, output_);
    }
    if (has_relu_) {
      TVM_INTEROP_CUDNN(api_, ActivationForward, handle, descs_.activation.get(), &kOne, output,
                        output_, &kZero, output, output_);
    }
  }

  // The calls of cuDNN multiply their operands by factors. cuDNN takes these factors in float32,
  // even for float16 tensors.
  static constexpr float kOne = 1;
  static constexpr float kZero = 0;

  const Api& api_;
  Descs descs_;
  const void* data_;
  const void* weight_;
  const void* bias_;  // Null if there is no bias.
  const void* sum_;   // Null if no tensor is added.
  void* output_;
  bool has_relu_;
  MathType most_math_;
  Algorithm algorithm_;
};

}  // namespace

std::unique_ptr<CudaKernelLibrary> LoadCudnn(const std::string& path) {
  return std::make_unique<ChoosingLibrary<cudnn::Api, CudnnConvolution>>("cudnn",
                                                                         cudnn::Api::Load(path));
}

std::string WhyNotForCudnn(const OpDescription& op) {
  const auto* conv = dynamic_cast<const Conv2d*>(&op);
  if (conv == nullptr) return "`cudnn` computes convolutions here, no `" + op.op + "`";
  const std::vector<int64_t>& padding = conv->window.padding;
  if (padding[0] != padding[2] || padding[1] != padding[3]) {
    return "`conv2d` has more padding on one side than on the other, which `cudnn` does not";
  }
  for (const auto& shape : op.shapes) {
    for (int64_t dim : shape) {
      if (dim > std::numeric_limits<int>::max()) return "`conv2d` has a dimension beyond 32 bits";
    }
  }
  return "";
}

}  // namespace tvm_interop

#include "runtime/cpu/onednn/library.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/kernel.h"

namespace tvm_interop {
namespace {

using namespace onednn;  // NOLINT: this file is about nothing else.

using Shape = std::vector<int64_t>;

constexpr int kAnyTag = 1;
constexpr int kBlocked16Tag = 78;  // aBcd16b, or nChw16c

// Descriptors of tensors.
class Descs {
 public:
  explicit Descs(const Api& api) : api_(api) {}

  // The library may choose how the tensor lies.
  Owned<MemoryDesc> Any(const Shape& shape, int type) const { return Tagged(shape, type, kAnyTag); }

  Owned<MemoryDesc> Laid(const Shape& shape, int type, Layout layout) const {
    return layout == Layout::kPlain ? Strided(shape, type, Contiguous(shape))
                                    : Tagged(shape, type, kBlocked16Tag);
  }

  Owned<MemoryDesc> Plain(const Shape& shape, int type) const {
    return Laid(shape, type, Layout::kPlain);
  }

  Owned<MemoryDesc> Strided(const Shape& shape, int type, const Shape& strides) const {
    MemoryDesc desc = nullptr;
    Check(api_.memory_desc_create_with_strides(&desc, static_cast<int>(shape.size()), shape.data(),
                                               type, strides.data()),
          "a descriptor");
    return {desc, api_.memory_desc_destroy};
  }

 private:
  Owned<MemoryDesc> Tagged(const Shape& shape, int type, int tag) const {
    MemoryDesc desc = nullptr;
    Check(api_.memory_desc_create_with_tag(&desc, static_cast<int>(shape.size()), shape.data(),
                                           type, tag),
          "a descriptor");
    return {desc, api_.memory_desc_destroy};
  }

  static Shape Contiguous(const Shape& shape) {
    Shape strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    return strides;
  }

  const Api& api_;
};

// An activation as oneDNN has it; the algorithm is 0 for none.
struct Elementwise {
  int algorithm;
  float alpha;
  float beta;
};

Elementwise ElementwiseOf(const OpDescription& op) {
  switch (op.activation) {
    case Activation::kNone:
      return {0, 0, 0};
    case Activation::kRelu:
      return {kRelu, 0, 0};
    case Activation::kClip:
      return {kClip, op.clip_low, op.clip_high};
    case Activation::kSigmoid:
      return {kLogistic, 0, 0};
    case Activation::kTanh:
      return {kTanh, 0, 0};
    case Activation::kSwish:
      return {kSwish, 1, 0};
    case Activation::kHardSwish:
      return {kHardSwish, 1.0f / 6, 0.5f};
    case Activation::kHardSigmoid:
      return {kHardSigmoid, 1.0f / 6, 0.5f};
    case Activation::kGelu:
      return {kGeluErf, 0, 0};
    case Activation::kGeluTanh:
      return {kGeluTanh, 0, 0};
  }
  throw std::logic_error("an activation without a name");
}

// Scratchpads are ours; `addends` are added, one after the other, and what follows the operator is
// fused into it.
Owned<Attributes> MakeAttributes(const Api& api, const OpDescription& op,
                                 const std::vector<const MemoryDescObject*>& addends) {
  PostOps post_ops = nullptr;
  Check(api.post_ops_create(&post_ops), "post-ops");
  const Owned<PostOps> owned(post_ops, api.post_ops_destroy);
  for (const MemoryDescObject* addend : addends) {
    Check(api.post_ops_append_binary(post_ops, kBinaryAdd, addend), "a sum");
  }
  const Elementwise activation = ElementwiseOf(op);
  if (activation.algorithm != 0) {
    Check(api.post_ops_append_eltwise(post_ops, activation.algorithm, activation.alpha,
                                      activation.beta),
          "an activation");
  }
  Attributes attributes = nullptr;
  Check(api.primitive_attr_create(&attributes), "attributes");
  Owned<Attributes> owned_attributes(attributes, api.primitive_attr_destroy);
  Check(api.primitive_attr_set_scratchpad_mode(attributes, kUserScratchpad), "a scratchpad");
  Check(api.primitive_attr_set_post_ops(attributes, post_ops), "post-ops");
  return owned_attributes;
}

// Makes one kernel: the library's parts for it, put together.
class Maker {
 public:
  Maker(const Api& api, Engine engine, const OpDescription& op, int threads,
        const std::vector<KernelArgument>& args)
      : api_(api),
        engine_(engine),
        op_(op),
        args_(args),
        descs_(api),
        kernel_(std::make_unique<OneDnnKernel>(api, engine, threads)) {}

  std::unique_ptr<LibraryKernel> Make() {
    if (op_.op == "conv2d") MakeConv();
    if (op_.op == "matmul") MakeMatmul();
    if (op_.op == "max_pool2d" || op_.op == "avg_pool2d") MakePool();
    if (op_.op == "lrn") MakeLrn();
    if (op_.op == "reorder") MakeReorder();
    if (op_.op == "scale") MakeScale();
    if (op_.op == "softmax") MakeSoftmax();
    if (op_.op == "layer_norm") MakeLayerNorm();
    return std::move(kernel_);
  }

 private:
  void MakeConv() {
    Shape weight = op_.shapes[1];
    if (op_.groups > 1) {
      weight[0] /= op_.groups;
      weight.insert(weight.begin(), op_.groups);
    }
    const auto weights = descs_.Plain(weight, Stored(1));
    const auto bias = BiasDesc({op_.shapes[1][0]});
    // Left to choose, oneDNN takes kernels that are slower than those for blocked tensors, and
    // whose order of adding up depends on the team. A source of few channels is read best as it is.
    Owned<PrimitiveDesc> desc =
        ConvDesc(weight,
                 op_.shapes[0][1] < 16 ? DataDesc(0, Factors())
                                       : descs_.Laid(op_.shapes[0], Factors(), Layout::kBlocked16),
                 descs_.Laid(op_.shapes.back(), Computed(last()), Layout::kBlocked16), bias.get());
    if (desc.get() == nullptr || Implementation(desc.get()).rfind("jit", 0) != 0) {
      desc =
          ConvDesc(weight, DataDesc(0, Factors()), DataDesc(last(), Computed(last())), bias.get());
    }
    if (desc.get() == nullptr) throw std::runtime_error("oneDNN: no kernel for this convolution");
    Bind(desc.get(), Laid(0), weights, bias.get());
  }

  // Null where there is no such kernel.
  Owned<PrimitiveDesc> ConvDesc(const Shape& weight, const Owned<MemoryDesc>& source,
                                const Owned<MemoryDesc>& result, MemoryDesc bias) const {
    const auto weights = descs_.Any(weight, Factors());
    const auto addend = descs_.Any(op_.shapes.back(), Computed(last() - 1));
    const auto attributes = MakeAttributes(api_, op_, Addends(addend));
    const Shape dilation{op_.dilation[0] - 1, op_.dilation[1] - 1};
    PrimitiveDesc made = nullptr;
    const int status = api_.convolution_forward_primitive_desc_create(
        &made, engine_, kForwardInference, kConvolutionAuto, source.get(), weights.get(), bias,
        result.get(), op_.strides.data(), dilation.data(), op_.padding.data(),
        op_.padding.data() + 2, attributes.get());
    if (status == kUnimplemented) return {};
    Check(status, "a convolution");
    return {made, api_.primitive_desc_destroy};
  }

  std::string Implementation(PrimitiveDesc desc) const {
    const char* name = "";
    Check(api_.primitive_desc_query(desc, kImplementation, 0, &name), "a kernel's name");
    return name;
  }

  void MakeMatmul() {
    const Shape& left = op_.shapes[0];
    const Shape& right = op_.shapes[1];
    // Matrices that share one right side are one tall matrix.
    const bool flat = right.size() == 2;
    const Shape source{Product(left) / left.back(), left.back()};
    const Shape result{source[0], right.back()};
    const Shape& source_shape = flat ? source : left;
    const Shape& result_shape = flat ? result : op_.shapes.back();
    Shape bias_shape(result_shape.size(), 1);
    bias_shape.back() = right.back();
    const auto source_desc = descs_.Plain(source_shape, Factors());
    const auto result_desc = descs_.Plain(result_shape, Computed(last()));
    const auto weights =
        args_[1].is_constant ? descs_.Any(right, Factors()) : descs_.Plain(right, Factors());
    const auto bias = BiasDesc(bias_shape);
    const auto addend = descs_.Plain(result_shape, Computed(last() - 1));
    const auto attributes = MakeAttributes(api_, op_, Addends(addend));
    PrimitiveDesc made = nullptr;
    Check(api_.matmul_primitive_desc_create(&made, engine_, source_desc.get(), weights.get(),
                                            bias.get(), result_desc.get(), attributes.get()),
          "a matrix product");
    const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
    const auto given_left = descs_.Plain(source_shape, Stored(0));
    const int left_tensor = kernel_->AddInput(args_[0], given_left.get(), source_desc.get());
    const auto plain_right = descs_.Plain(right, Stored(1));
    const int right_tensor =
        kernel_->AddInput(args_[1], plain_right.get(), Wanted(desc.get(), kWeightsDesc));
    std::vector<std::pair<int, int>> tensors{{kSource, left_tensor}, {kWeights, right_tensor}};
    AddBias(bias.get(), &tensors);
    if (op_.has_sum) {
      const auto given = descs_.Plain(result_shape, Stored(last() - 1));
      tensors.emplace_back(PostOp(0) | kAddend,
                           kernel_->AddInput(args_[last() - 1], given.get(), addend.get()));
    }
    AddResultAndCall(desc.get(), descs_.Plain(result_shape, Stored(last())), std::move(tensors));
  }

  void MakePool() {
    const auto source = Inner(0, Moved()), result = Inner(last(), Moved());
    const auto attributes = MakeAttributes(api_, op_, {});
    const int algorithm = op_.op == "max_pool2d" ? kPoolingMax
                          : op_.counts_padding   ? kPoolingAverageWithPadding
                                                 : kPoolingAverageWithoutPadding;
    const Shape dilation{op_.dilation[0] - 1, op_.dilation[1] - 1};
    // Where the output was rounded up the window hangs over the edge: padding, to oneDNN.
    Shape padding_end;
    for (int axis : {0, 1}) {
      const int64_t reach = (op_.shapes.back()[2 + axis] - 1) * op_.strides[axis] +
                            (op_.window[axis] - 1) * op_.dilation[axis] + 1;
      padding_end.push_back(
          std::max<int64_t>(0, reach - op_.shapes[0][2 + axis] - op_.padding[axis]));
    }
    PrimitiveDesc made = nullptr;
    Check(api_.pooling_forward_primitive_desc_create(
              &made, engine_, kForwardInference, algorithm, source.get(), result.get(),
              op_.strides.data(), op_.window.data(), dilation.data(), op_.padding.data(),
              padding_end.data(), attributes.get()),
          "a pooling");
    const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
    BindUnary(desc.get(), source.get());
  }

  void MakeLrn() {
    const auto source = Inner(0, Moved()), result = Inner(last(), Moved());
    const auto attributes = MakeAttributes(api_, op_, {});
    PrimitiveDesc made = nullptr;
    Check(api_.lrn_forward_primitive_desc_create(
              &made, engine_, kForwardInference, kLrnAcrossChannels, source.get(), result.get(),
              op_.lrn_size, op_.lrn_alpha, op_.lrn_beta, op_.lrn_bias, attributes.get()),
          "a local response normalisation");
    const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
    BindUnary(desc.get(), source.get());
  }

  void MakeReorder() {
    const auto from = Laid(0), to = Laid(1);
    const int source = kernel_->AddArgument(args_[0], from.get());
    kernel_->AddReorder(source, kernel_->AddArgument(args_[1], to.get()));
  }

  // The bias is added after the product.
  void MakeScale() {
    const auto source = Inner(0, Stored(0)), result = Inner(last(), Stored(last()));
    const auto factor = descs_.Any(op_.shapes[1], Stored(1));
    const auto bias = descs_.Any({1, op_.shapes[0][1], 1, 1}, kFloat32);
    std::vector<const MemoryDescObject*> addends;
    if (op_.has_bias) addends.push_back(bias.get());
    const auto attributes = MakeAttributes(api_, op_, addends);
    PrimitiveDesc made = nullptr;
    Check(api_.binary_primitive_desc_create(&made, engine_, kBinaryMultiply, source.get(),
                                            factor.get(), result.get(), attributes.get()),
          "a product");
    const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
    const auto given = Laid(0), given_factor = descs_.Plain(op_.shapes[1], Stored(1));
    std::vector<std::pair<int, int>> tensors{
        {kSource, kernel_->AddInput(args_[0], given.get(), source.get())},
        {kSecondSource, kernel_->AddInput(args_[1], given_factor.get(),
                                          Wanted(made, kArgumentDesc, kSecondSource))}};
    if (op_.has_bias) {
      const int which = PostOp(0) | kAddend;
      const auto given_bias = descs_.Plain({1, op_.shapes[0][1], 1, 1}, kFloat32);
      tensors.emplace_back(
          which, kernel_->AddInput(args_[2], given_bias.get(), Wanted(made, kArgumentDesc, which)));
    }
    AddResultAndCall(made, Laid(last()), std::move(tensors));
  }

  void MakeSoftmax() {
    const auto data = descs_.Plain(op_.shapes[0], Stored(0));
    // Into bfloat16 oneDNN would round what it adds up, and once more at the end.
    const auto result = descs_.Plain(op_.shapes[0], kFloat32);
    const auto attributes = MakeAttributes(api_, op_, {});
    PrimitiveDesc made = nullptr;
    Check(api_.softmax_forward_primitive_desc_create(
              &made, engine_, kForwardInference, kSoftmaxAccurate, data.get(), result.get(),
              static_cast<int>(op_.shapes[0].size()) - 1, attributes.get()),
          "a softmax");
    const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
    BindUnary(made, data.get());
  }

  void MakeLayerNorm() {
    // oneDNN takes few dimensions: the rows are what counts.
    const int64_t size = op_.shapes[0].back();
    const Shape rows{Product(op_.shapes[0]) / size, size};
    const auto data = descs_.Plain(rows, Stored(0)), result = descs_.Plain(rows, Stored(3));
    const auto numbers = descs_.Plain({size}, kFloat32);
    const auto attributes = MakeAttributes(api_, op_, {});
    PrimitiveDesc made = nullptr;
    Check(api_.layer_normalization_forward_primitive_desc_create(
              &made, engine_, kForwardInference, data.get(), result.get(), nullptr, op_.epsilon,
              kUseScale | kUseShift, attributes.get()),
          "a layer normalisation");
    const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
    kernel_->AddPrimitive(made, {{kSource, kernel_->AddArgument(args_[0], data.get())},
                                 {kScale, kernel_->AddArgument(args_[1], numbers.get())},
                                 {kShift, kernel_->AddArgument(args_[2], numbers.get())},
                                 {kDestination, kernel_->AddArgument(args_[3], result.get())}});
  }

  // Binds source and result, the source as the primitive was made for.
  void BindUnary(PrimitiveDesc desc, const MemoryDescObject* wanted) {
    const auto given = Laid(0);
    std::vector<std::pair<int, int>> tensors{
        {kSource, kernel_->AddInput(args_[0], given.get(), wanted)}};
    AddResultAndCall(desc, Laid(last()), std::move(tensors));
  }

  // Binds source, weights, bias, addend and result, each as `desc` wants it.
  void Bind(PrimitiveDesc desc, const Owned<MemoryDesc>& source, const Owned<MemoryDesc>& weights,
            const MemoryDescObject* bias) {
    std::vector<std::pair<int, int>> tensors{
        {kSource, kernel_->AddInput(args_[0], source.get(), Wanted(desc, kSourceDesc))},
        {kWeights, kernel_->AddInput(args_[1], weights.get(), Wanted(desc, kWeightsDesc))}};
    AddBias(bias, &tensors);
    if (op_.has_sum) {
      const auto given = Laid(last() - 1);
      const MemoryDescObject* wanted = Wanted(desc, kArgumentDesc, PostOp(0) | kAddend);
      tensors.emplace_back(PostOp(0) | kAddend,
                           kernel_->AddInput(args_[last() - 1], given.get(), wanted));
    }
    AddResultAndCall(desc, Laid(last()), std::move(tensors));
  }

  void AddBias(const MemoryDescObject* desc, std::vector<std::pair<int, int>>* tensors) {
    if (op_.has_bias) tensors->emplace_back(kBias, kernel_->AddArgument(args_[2], desc));
  }

  // Binds the result, which lies as `given` says, and adds the call.
  void AddResultAndCall(PrimitiveDesc desc, const Owned<MemoryDesc>& given,
                        std::vector<std::pair<int, int>> tensors) {
    const MemoryDescObject* made = Wanted(desc, kDestinationDesc);
    const int result = kernel_->AddArgument(args_[last()], given.get());
    const bool as_is = api_.memory_desc_equal(given.get(), made) != 0;
    const int computed = as_is ? result : kernel_->AddBuffer(made);
    tensors.emplace_back(kDestination, computed);
    kernel_->AddPrimitive(desc, std::move(tensors));
    if (!as_is) kernel_->AddReorder(computed, result);
  }

  const MemoryDescObject* Wanted(PrimitiveDesc desc, int query, int index = 0) const {
    return api_.primitive_desc_query_md(desc, query, index);
  }

  std::vector<const MemoryDescObject*> Addends(const Owned<MemoryDesc>& addend) const {
    if (!op_.has_sum) return {};
    return {addend.get()};
  }

  // Null where there is no bias, as oneDNN has it.
  Owned<MemoryDesc> BiasDesc(const Shape& shape) const {
    return op_.has_bias ? descs_.Plain(shape, kFloat32) : Owned<MemoryDesc>();
  }

  // An argument of a unary operator as it is computed: blocked where either tensor is. Between two
  // layouts oneDNN has only its slowest kernels.
  Owned<MemoryDesc> Inner(int arg, int type) const {
    const bool blocked =
        op_.layouts[0] == Layout::kBlocked16 || op_.layouts[last()] == Layout::kBlocked16;
    return descs_.Laid(op_.shapes[arg], type, blocked ? Layout::kBlocked16 : Layout::kPlain);
  }

  // An argument as it lies in memory, and as the primitive may have it: in a layout of its own
  // choice where ours is plain, which suits few kernels.
  Owned<MemoryDesc> Laid(int arg) const {
    return descs_.Laid(op_.shapes[arg], Stored(arg), op_.layouts[arg]);
  }
  Owned<MemoryDesc> DataDesc(int arg, int type) const {
    return op_.layouts[arg] == Layout::kPlain
               ? descs_.Any(op_.shapes[arg], type)
               : descs_.Laid(op_.shapes[arg], type, op_.layouts[arg]);
  }

  // What the numbers of an argument are kept as.
  int Stored(int arg) const { return TypeOf(op_.stored_type(arg)); }
  // What factors of products are rounded to.
  int Factors() const { return TypeOf(op_.dtype); }
  // An addend or result of a product as the primitive has it: those of float32 are of float32.
  int Computed(int arg) const { return Factors() == kFloat32 ? kFloat32 : Stored(arg); }
  // What only moves or pools numbers has one type for both of its tensors.
  int Moved() const { return Stored(0) == Stored(last()) ? Stored(0) : kFloat32; }

  static int TypeOf(tvm_interop::DataType type) {
    return type == tvm_interop::DataType::kBfloat16 ? kBfloat16 : kFloat32;
  }

  static int64_t Product(const Shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  int last() const { return static_cast<int>(op_.shapes.size()) - 1; }

  const Api& api_;
  Engine engine_;
  const OpDescription& op_;
  const std::vector<KernelArgument>& args_;
  Descs descs_;
  std::unique_ptr<OneDnnKernel> kernel_;
};

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
    if (op.op == "avg_pool2d" && op.counts_padding) {
      for (int axis : {0, 1}) {
        const int64_t reach = (op.shapes.back()[2 + axis] - 1) * op.strides[axis] +
                              (op.window[axis] - 1) * op.dilation[axis] + 1;
        if (reach > op.shapes[0][2 + axis] + op.padding[axis] + op.padding[2 + axis]) {
          return "`avg_pool2d` rounds its output up and counts padding";
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
    const bool gets_team = threads == 1 || IsSureOfItsBits(kernel->implementation());
    return gets_team ? std::move(kernel) : Make(op, 1, args);
  }

 private:
  // Factors of products, and tensors that operators hand on, may be of bfloat16.
  static std::string WhyMistyped(const OpDescription& op) {
    using Type = tvm_interop::DataType;
    const bool multiplies = op.op == "conv2d" || op.op == "matmul";
    if (op.dtype == Type::kFloat16) {
      return "`" + op.op + "` is not of float32 or bfloat16";
    }
    if (op.dtype == Type::kBfloat16 && !multiplies)
      return "`" + op.op + "` has no factors to round";
    for (size_t i = 0; i < op.shapes.size(); ++i) {
      if (op.stored_type(i) == Type::kFloat16) return "`" + op.op + "` has a tensor of float16";
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

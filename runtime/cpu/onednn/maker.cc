#include "runtime/cpu/onednn/maker.h"

#include <algorithm>
#include <stdexcept>

namespace tvm_interop {
namespace onednn {
namespace {

// What is done to each number, as oneDNN has it; the algorithm is 0 for nothing.
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

// A step that adds no tensor.
Elementwise ElementwiseOf(const Step& step) {
  if (step.kind == StepKind::kClip) return {kClip, step.a, step.b};
  if (step.kind == StepKind::kLinear) return {kLinear, step.a, step.b};
  return {kRound, 0, 0};
}

int64_t SizeOf(tvm_interop::DataType type) {
  switch (type) {
    case tvm_interop::DataType::kFloat32:
    case tvm_interop::DataType::kInt32:
      return 4;
    case tvm_interop::DataType::kFloat16:
    case tvm_interop::DataType::kBfloat16:
      return 2;
    case tvm_interop::DataType::kInt8:
    case tvm_interop::DataType::kUint8:
      return 1;
  }
  throw std::logic_error("a type without a size");
}

}  // namespace

Owned<Attributes> MakeAttributes(const Api& api, const OpDescription& op,
                                 const std::vector<const MemoryDescObject*>& addends) {
  PostOps post_ops = nullptr;
  Check(api.post_ops_create(&post_ops), "post-ops");
  const Owned<PostOps> owned(post_ops, api.post_ops_destroy);
  const auto append = [&](const Elementwise& each) {
    Check(api.post_ops_append_eltwise(post_ops, each.algorithm, each.alpha, each.beta),
          "an activation");
  };
  size_t added = 0;
  const auto add_tensor = [&] {
    Check(api.post_ops_append_binary(post_ops, kBinaryAdd, addends.at(added++)), "a sum");
  };
  for (const Step& step : op.steps) {
    if (step.kind == StepKind::kAddTensor) {
      add_tensor();
    } else {
      append(ElementwiseOf(step));
    }
  }
  while (added < addends.size()) add_tensor();
  if (op.activation != Activation::kNone) append(ElementwiseOf(op));
  Attributes attributes = nullptr;
  Check(api.primitive_attr_create(&attributes), "attributes");
  Owned<Attributes> owned_attributes(attributes, api.primitive_attr_destroy);
  Check(api.primitive_attr_set_scratchpad_mode(attributes, kUserScratchpad), "a scratchpad");
  Check(api.primitive_attr_set_post_ops(attributes, post_ops), "post-ops");
  return owned_attributes;
}

std::unique_ptr<LibraryKernel> Maker::Make() {
  if (op_.op == "conv2d") MakeConv();
  if (op_.op == "matmul") MakeMatmul();
  if (op_.op == "max_pool2d" || op_.op == "avg_pool2d") MakePool();
  if (op_.op == "lrn") MakeLrn();
  if (op_.op == "reorder") MakeReorder();
  if (op_.op == "scale") MakeScale();
  if (op_.op == "softmax") MakeSoftmax();
  if (op_.op == "layer_norm") MakeLayerNorm();
  if (op_.op == "quantised_conv2d") MakeQuantisedConv();
  if (op_.op == "quantised_matmul") MakeQuantisedMatmul();
  if (op_.op == "quantised_max_pool2d" || op_.op == "quantised_avg_pool2d") MakeQuantisedPool();
  return std::move(kernel_);
}

void Maker::MakeConv() {
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
    desc = ConvDesc(weight, DataDesc(0, Factors()), DataDesc(last(), Computed(last())), bias.get());
  }
  if (desc.get() == nullptr) throw std::runtime_error("oneDNN: no kernel for this convolution");
  Bind(desc.get(), Laid(0), weights, bias.get());
}

Owned<PrimitiveDesc> Maker::ConvDesc(const Shape& weight, const Owned<MemoryDesc>& source,
                                     const Owned<MemoryDesc>& result, MemoryDesc bias) const {
  const auto weights = descs_.Any(weight, Factors());
  const auto addend = descs_.Any(op_.shapes.back(), Computed(last() - 1));
  const auto attributes = MakeAttributes(api_, op_, Addends(addend));
  const Shape dilation{op_.dilation[0] - 1, op_.dilation[1] - 1};
  PrimitiveDesc made = nullptr;
  const int status = api_.convolution_forward_primitive_desc_create(
      &made, engine_, kForwardInference, kConvolutionAuto, source.get(), weights.get(), bias,
      result.get(), op_.strides.data(), dilation.data(), op_.padding.data(), op_.padding.data() + 2,
      attributes.get());
  if (status == kUnimplemented) return {};
  Check(status, "a convolution");
  return {made, api_.primitive_desc_destroy};
}

std::string Maker::Implementation(PrimitiveDesc desc) const {
  const char* name = "";
  Check(api_.primitive_desc_query(desc, kImplementation, 0, &name), "a kernel's name");
  return name;
}

void Maker::MakeMatmul() {
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
  const auto weights = args_[1].is_constant ? descs_.Any(right, Factors()) : GivenRight(Factors());
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
  const auto given_right = GivenRight(Stored(1));
  const int right_tensor =
      kernel_->AddInput(Argument(1), given_right.get(), Wanted(desc.get(), kWeightsDesc));
  std::vector<std::pair<int, int>> tensors{{kSource, left_tensor}, {kWeights, right_tensor}};
  AddBias(bias.get(), &tensors);
  if (op_.has_sum) {
    const auto given = descs_.Plain(result_shape, Stored(last() - 1));
    tensors.emplace_back(PostOp(0) | kAddend,
                         kernel_->AddInput(args_[last() - 1], given.get(), addend.get()));
  }
  AddResultAndCall(desc.get(), descs_.Plain(result_shape, Stored(last())), std::move(tensors));
}

void Maker::MakePool() {
  const auto source = Inner(0, Moved()), result = Inner(last(), Moved());
  const auto desc = PoolDesc(source, op_.shapes[0], result, op_.shapes.back());
  BindUnary(desc.get(), source.get());
}

Owned<PrimitiveDesc> Maker::PoolDesc(const Owned<MemoryDesc>& source, const Shape& from,
                                     const Owned<MemoryDesc>& result, const Shape& to) const {
  const auto attributes = MakeAttributes(api_, op_, {});
  const bool is_max = op_.op == "max_pool2d" || op_.op == "quantised_max_pool2d";
  const int algorithm = is_max               ? kPoolingMax
                        : op_.counts_padding ? kPoolingAverageWithPadding
                                             : kPoolingAverageWithoutPadding;
  const Shape dilation{op_.dilation[0] - 1, op_.dilation[1] - 1};
  // Where the output was rounded up the window hangs over the edge: padding, to oneDNN.
  Shape padding_end;
  for (int axis : {0, 1}) {
    const int64_t reach =
        (to[2 + axis] - 1) * op_.strides[axis] + (op_.window[axis] - 1) * op_.dilation[axis] + 1;
    padding_end.push_back(std::max<int64_t>(0, reach - from[2 + axis] - op_.padding[axis]));
  }
  PrimitiveDesc made = nullptr;
  Check(api_.pooling_forward_primitive_desc_create(
            &made, engine_, kForwardInference, algorithm, source.get(), result.get(),
            op_.strides.data(), op_.window.data(), dilation.data(), op_.padding.data(),
            padding_end.data(), attributes.get()),
        "a pooling");
  return {made, api_.primitive_desc_destroy};
}

void Maker::MakeLrn() {
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

void Maker::MakeReorder() {
  const auto from = Laid(0), to = Laid(1);
  const int source = kernel_->AddArgument(args_[0], from.get());
  kernel_->AddReorder(source, kernel_->AddArgument(args_[1], to.get()));
}

void Maker::MakeScale() {
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

void Maker::MakeSoftmax() {
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

void Maker::MakeLayerNorm() {
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

void Maker::BindUnary(PrimitiveDesc desc, const MemoryDescObject* wanted) {
  const auto given = Laid(0);
  std::vector<std::pair<int, int>> tensors{
      {kSource, kernel_->AddInput(args_[0], given.get(), wanted)}};
  AddResultAndCall(desc, Laid(last()), std::move(tensors));
}

void Maker::Bind(PrimitiveDesc desc, const Owned<MemoryDesc>& source,
                 const Owned<MemoryDesc>& weights, const MemoryDescObject* bias) {
  std::vector<std::pair<int, int>> tensors{
      {kSource, kernel_->AddInput(Argument(0), source.get(), Wanted(desc, kSourceDesc))},
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

Shape Maker::GivenStrides() const {
  Shape given = op_.shapes[op_.cut[0]];
  given[op_.cut[1]] = op_.cut[3];
  return Descs::Contiguous(given);
}

KernelArgument Maker::Argument(int arg) const {
  KernelArgument argument = args_[arg];
  if (!op_.is_cut(arg)) return argument;
  const Shape strides = GivenStrides();
  const Shape& shape = op_.shapes[arg];
  int64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) last += (shape[i] - 1) * strides[i];
  argument.offset = op_.cut[2] * strides[op_.cut[1]] * SizeOf(op_.stored_type(arg));
  argument.nbytes = (last + 1) * SizeOf(op_.stored_type(arg));
  return argument;
}

void Maker::AddBias(const MemoryDescObject* desc, std::vector<std::pair<int, int>>* tensors) {
  if (op_.has_bias) tensors->emplace_back(kBias, kernel_->AddArgument(args_[2], desc));
}

void Maker::AddResultAndCall(PrimitiveDesc desc, const Owned<MemoryDesc>& given,
                             std::vector<std::pair<int, int>> tensors) {
  const MemoryDescObject* made = Wanted(desc, kDestinationDesc);
  const int result = kernel_->AddArgument(args_[last()], given.get());
  const bool as_is = api_.memory_desc_equal(given.get(), made) != 0;
  const int computed = as_is ? result : kernel_->AddBuffer(made);
  tensors.emplace_back(kDestination, computed);
  kernel_->AddPrimitive(desc, std::move(tensors));
  if (!as_is) kernel_->AddReorder(computed, result);
}

}  // namespace onednn
}  // namespace tvm_interop

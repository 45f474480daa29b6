// Quantised operators: products of integers, and what only moves them.

#include <algorithm>

#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {

void Maker::MakeQuantisedConv() {
  Shape weight = op_.shapes[1];
  if (op_.groups > 1) {
    weight[0] /= op_.groups;
    weight.insert(weight.begin(), op_.groups);
  }
  const auto source = ChannelsLast(0), result = ChannelsLast(last());
  const auto weights = descs_.Any(weight, Stored(1));
  const auto bias = BiasDesc({op_.shapes[1][0]});
  const auto addend = op_.has_sum ? ChannelsLast(last() - 1) : Owned<MemoryDesc>();
  const auto attributes = QuantisedAttributes(op_.groups > 1 ? 3 : 1, addend);
  const Shape dilation{op_.dilation[0] - 1, op_.dilation[1] - 1};
  PrimitiveDesc made = nullptr;
  Check(api_.convolution_forward_primitive_desc_create(
            &made, engine_, kForwardInference, kConvolutionAuto, source.get(), weights.get(),
            bias.get(), result.get(), op_.strides.data(), dilation.data(), op_.padding.data(),
            op_.padding.data() + 2, attributes.get()),
        "a quantised convolution");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  BindQuantised(made, source, descs_.Plain(weight, Stored(1)), bias, addend, result);
}

void Maker::MakeQuantisedMatmul() {
  const Shape& left = op_.shapes[0];
  const Shape& right = op_.shapes[1];
  const bool flat = right.size() == 2;
  const Shape rows{Product(left) / left.back(), left.back()};
  const Shape flat_result{rows[0], right.back()};
  const Shape& result_shape = flat ? flat_result : op_.shapes.back();
  const auto source = descs_.Plain(flat ? rows : left, Stored(0));
  const auto result = descs_.Plain(result_shape, Stored(last()));
  const auto given = descs_.Plain(right, Stored(1));
  const auto weights =
      args_[1].is_constant ? descs_.Any(right, Stored(1)) : descs_.Plain(right, Stored(1));
  Shape bias_shape(result_shape.size(), 1);
  bias_shape.back() = right.back();
  const auto bias = BiasDesc(bias_shape);
  const auto addend =
      op_.has_sum ? descs_.Plain(result_shape, Stored(last() - 1)) : Owned<MemoryDesc>();
  const auto attributes = QuantisedAttributes(1 << (right.size() - 1), addend);
  PrimitiveDesc made = nullptr;
  Check(api_.matmul_primitive_desc_create(&made, engine_, source.get(), weights.get(), bias.get(),
                                          result.get(), attributes.get()),
        "a quantised matrix product");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  BindQuantised(made, source, given, bias, addend, result);
}

void Maker::MakeQuantisedPool() {
  const auto source = ChannelsLast(0), result = ChannelsLast(last());
  const Shape images{op_.shapes[0][0], op_.shapes[0][3], op_.shapes[0][1], op_.shapes[0][2]};
  const Shape results{op_.shapes[1][0], op_.shapes[1][3], op_.shapes[1][1], op_.shapes[1][2]};
  const auto desc = PoolDesc(source, images, result, results);
  kernel_->AddPrimitive(desc.get(), {{kSource, kernel_->AddArgument(args_[0], source.get())},
                                     {kDestination, kernel_->AddArgument(args_[1], result.get())}});
}

Owned<Attributes> Maker::QuantisedAttributes(int axes, const Owned<MemoryDesc>& addend) const {
  Owned<Attributes> attributes = MakeAttributes(api_, op_, Addends(addend));
  Check(api_.primitive_attr_set_scales_mask(attributes.get(), kWeights, axes), "scales");
  if (op_.data_zero != 0) {
    Check(api_.primitive_attr_set_zero_points_mask(attributes.get(), kSource, 0), "a zero point");
  }
  if (op_.weight_zero != 0) {
    Check(api_.primitive_attr_set_zero_points_mask(attributes.get(), kWeights, 0),
          "a zero point of weights");
  }
  return attributes;
}

void Maker::BindQuantised(PrimitiveDesc desc, const Owned<MemoryDesc>& source,
                          const Owned<MemoryDesc>& weights, const Owned<MemoryDesc>& bias,
                          const Owned<MemoryDesc>& addend, const Owned<MemoryDesc>& result) {
  const auto scale = descs_.Plain({op_.shapes.back().back()}, kFloat32);
  const auto number = descs_.Plain({1}, kInt32);
  std::vector<std::pair<int, int>> tensors{
      {kSource, kernel_->AddArgument(Argument(0), source.get())},
      {kWeights, kernel_->AddInput(args_[1], weights.get(), Wanted(desc, kWeightsDesc))},
      {kScalesOf | kWeights, kernel_->AddArgument(args_[2], scale.get())}};
  if (op_.data_zero != 0) {
    tensors.emplace_back(kZeroPointsOf | kSource,
                         kernel_->AddNumber(number.get(), static_cast<int32_t>(op_.data_zero)));
  }
  if (op_.weight_zero != 0) {
    tensors.emplace_back(kZeroPointsOf | kWeights,
                         kernel_->AddNumber(number.get(), static_cast<int32_t>(op_.weight_zero)));
  }
  if (op_.has_bias) tensors.emplace_back(kBias, kernel_->AddArgument(args_[3], bias.get()));
  if (op_.has_sum) {
    const auto adds = [](const Step& step) { return step.kind == StepKind::kAddTensor; };
    const auto index = std::find_if(op_.steps.begin(), op_.steps.end(), adds) - op_.steps.begin();
    tensors.emplace_back(PostOp(static_cast<int>(index)) | kAddend,
                         kernel_->AddArgument(args_[last() - 1], addend.get()));
  }
  tensors.emplace_back(kDestination, kernel_->AddArgument(args_[last()], result.get()));
  kernel_->AddPrimitive(desc, std::move(tensors));
}

}  // namespace onednn
}  // namespace tvm_interop

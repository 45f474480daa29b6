#ifndef RUNTIME_CPU_ONEDNN_QUANTISED_H_
#define RUNTIME_CPU_ONEDNN_QUANTISED_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {

// A maker of kernels that multiply integers. The class `Kind` of the operator has the fields
// `ending` and `integers`.
template <typename Kind>
class QuantisedMaker : public MakerOf<Kind> {
 public:
  using MakerOf<Kind>::MakerOf;

 protected:
  // Makes the attributes that turn the sums of products into the result. `axes` is a bit mask of
  // the weight's axes along which the scales vary.
  Owned<Attributes> QuantisedAttributes(int axes, const Owned<MemoryDesc>& addend) const;
  void BindQuantised(PrimitiveDesc desc, const Owned<MemoryDesc>& source,
                     const Owned<MemoryDesc>& weights, const Owned<MemoryDesc>& bias,
                     const Owned<MemoryDesc>& addend, const Owned<MemoryDesc>& result);

  using Maker::AddBias;
  using Maker::Addends;
  using Maker::api_;
  using Maker::args_;
  using Maker::Argument;
  using Maker::BiasDesc;
  using Maker::descs_;
  using Maker::engine_;
  using Maker::kernel_;
  using Maker::last;
  using Maker::op_;
  using Maker::Stored;
  using Maker::Wanted;
  using MakerOf<Kind>::kind_;
};

template <typename Kind>
Owned<Attributes> QuantisedMaker<Kind>::QuantisedAttributes(int axes,
                                                            const Owned<MemoryDesc>& addend) const {
  Owned<Attributes> attributes =
      MakeAttributes(api_, kind_.ending, kind_.integers.steps, Addends(addend));
  Check(api_.primitive_attr_set_scales_mask(attributes.get(), kWeights, axes), "scales");
  if (kind_.integers.data_zero != 0) {
    Check(api_.primitive_attr_set_zero_points_mask(attributes.get(), kSource, 0), "a zero point");
  }
  if (kind_.integers.weight_zero != 0) {
    Check(api_.primitive_attr_set_zero_points_mask(attributes.get(), kWeights, 0),
          "a zero point of weights");
  }
  return attributes;
}

template <typename Kind>
void QuantisedMaker<Kind>::BindQuantised(PrimitiveDesc desc, const Owned<MemoryDesc>& source,
                                         const Owned<MemoryDesc>& weights,
                                         const Owned<MemoryDesc>& bias,
                                         const Owned<MemoryDesc>& addend,
                                         const Owned<MemoryDesc>& result) {
  const auto scale = descs_.Plain({op_.shapes.back().back()}, kFloat32);
  const auto number = descs_.Plain({1}, kInt32);
  std::vector<std::pair<int, int>> tensors{
      {kSource, kernel_->AddArgument(Argument(0), source.get())},
      {kWeights, kernel_->AddInput(args_[1], weights.get(), Wanted(desc, kWeightsDesc))},
      {kScalesOf | kWeights, kernel_->AddArgument(args_[2], scale.get())}};
  if (kind_.integers.data_zero != 0) {
    tensors.emplace_back(
        kZeroPointsOf | kSource,
        kernel_->AddNumber(number.get(), static_cast<int32_t>(kind_.integers.data_zero)));
  }
  if (kind_.integers.weight_zero != 0) {
    tensors.emplace_back(
        kZeroPointsOf | kWeights,
        kernel_->AddNumber(number.get(), static_cast<int32_t>(kind_.integers.weight_zero)));
  }
  if (kind_.ending.has_bias)
    tensors.emplace_back(kBias, kernel_->AddArgument(args_[3], bias.get()));
  if (kind_.ending.has_sum) {
    const auto adds = [](const Step& step) { return step.kind == StepKind::kAddTensor; };
    const auto index =
        std::find_if(kind_.integers.steps.begin(), kind_.integers.steps.end(), adds) -
        kind_.integers.steps.begin();
    tensors.emplace_back(PostOp(static_cast<int>(index)) | kAddend,
                         kernel_->AddArgument(args_[last() - 1], addend.get()));
  }
  tensors.emplace_back(kDestination, kernel_->AddArgument(args_[last()], result.get()));
  kernel_->AddPrimitive(desc, std::move(tensors));
}

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_QUANTISED_H_

#include "runtime/core/operators/quantised_conv2d.h"

#include <string>

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/quantised.h"

namespace tvm_interop {
namespace onednn {
namespace {

class QuantisedConvMaker : public QuantisedMaker<QuantisedConv2d> {
 public:
  using QuantisedMaker::QuantisedMaker;
  void Make() override;
};

void QuantisedConvMaker::Make() {
  Shape weight = op_.shapes[1];
  if (kind_.groups > 1) {
    weight[0] /= kind_.groups;
    weight.insert(weight.begin(), kind_.groups);
  }
  const auto source = ChannelsLast(0), result = ChannelsLast(last());
  const auto weights = descs_.Any(weight, Stored(1));
  const auto bias = BiasDesc({op_.shapes[1][0]});
  const auto addend = kind_.ending.has_sum ? ChannelsLast(last() - 1) : Owned<MemoryDesc>();
  const auto attributes = QuantisedAttributes(kind_.groups > 1 ? 3 : 1, addend);
  const Shape dilation{kind_.window.dilation[0] - 1, kind_.window.dilation[1] - 1};
  PrimitiveDesc made = nullptr;
  Check(api_.convolution_forward_primitive_desc_create(
            &made, engine_, kForwardInference, kConvolutionAuto, source.get(), weights.get(),
            bias.get(), result.get(), kind_.window.strides.data(), dilation.data(),
            kind_.window.padding.data(), kind_.window.padding.data() + 2, attributes.get()),
        "a quantised convolution");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  BindQuantised(made, source, descs_.Plain(weight, Stored(1)), bias, addend, result);
}

std::string WhyNot(const OpDescription& op) { return WhyNotIntegers(op); }

const RegisteredMaker<QuantisedConvMaker> kRegistered("quantised_conv2d", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

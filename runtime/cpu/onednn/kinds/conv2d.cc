#include "runtime/core/operators/conv2d.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

class ConvMaker : public MakerOf<Conv2d> {
 public:
  using MakerOf::MakerOf;
  void Make() override;

 private:
  // Describes the convolution for oneDNN. Returns null if oneDNN has no such kernel.
  Owned<PrimitiveDesc> ConvDesc(const Shape& weight, const Owned<MemoryDesc>& source,
                                const Owned<MemoryDesc>& result, MemoryDesc bias) const;
  // Binds source, weights, bias, addend and result in the layouts that `desc` wants.
  void Bind(PrimitiveDesc desc, const Owned<MemoryDesc>& source, const Owned<MemoryDesc>& weights,
            const MemoryDescObject* bias);
};

void ConvMaker::Make() {
  Shape weight = op_.shapes[1];
  if (kind_.groups > 1) {
    weight[0] /= kind_.groups;
    weight.insert(weight.begin(), kind_.groups);
  }
  const auto weights = descs_.Plain(weight, Stored(1));
  const auto bias = BiasDesc({op_.shapes[1][0]});
  // Try blocked layouts first. If oneDNN chose the layouts, its kernels would be slower, and the
  // order in which they add up numbers would depend on the number of threads. For a source with
  // fewer channels than a block, oneDNN is fastest without blocks.
  const Layout blocked = api_.Blocked();
  Owned<PrimitiveDesc> desc =
      ConvDesc(weight,
               op_.shapes[0][1] < BlockOf(blocked) ? DataDesc(0, Factors())
                                                   : descs_.Laid(op_.shapes[0], Factors(), blocked),
               descs_.Laid(op_.shapes.back(), Computed(last()), blocked), bias.get());
  if (desc.get() == nullptr || Implementation(desc.get()).rfind("jit", 0) != 0) {
    desc = ConvDesc(weight, DataDesc(0, Factors()), DataDesc(last(), Computed(last())), bias.get());
  }
  if (desc.get() == nullptr) throw std::runtime_error("oneDNN: no kernel for this convolution");
  Bind(desc.get(), Laid(0), weights, bias.get());
}

Owned<PrimitiveDesc> ConvMaker::ConvDesc(const Shape& weight, const Owned<MemoryDesc>& source,
                                         const Owned<MemoryDesc>& result, MemoryDesc bias) const {
  const auto weights = descs_.Any(weight, Factors());
  const auto addend = descs_.Any(op_.shapes.back(), Computed(last() - 1));
  const auto attributes = MakeAttributes(api_, kind_.ending, {}, Addends(addend));
  const Shape dilation{kind_.window.dilation[0] - 1, kind_.window.dilation[1] - 1};
  PrimitiveDesc made = nullptr;
  const int status = api_.convolution_forward_primitive_desc_create(
      &made, engine_, kForwardInference, kConvolutionAuto, source.get(), weights.get(), bias,
      result.get(), kind_.window.strides.data(), dilation.data(), kind_.window.padding.data(),
      kind_.window.padding.data() + 2, attributes.get());
  if (status == kUnimplemented) return {};
  Check(status, "a convolution");
  return {made, api_.primitive_desc_destroy};
}

void ConvMaker::Bind(PrimitiveDesc desc, const Owned<MemoryDesc>& source,
                     const Owned<MemoryDesc>& weights, const MemoryDescObject* bias) {
  std::vector<std::pair<int, int>> tensors{
      {kSource, kernel_->AddInput(Argument(0), source.get(), Wanted(desc, kSourceDesc))},
      {kWeights, kernel_->AddInput(args_[1], weights.get(), Wanted(desc, kWeightsDesc))}};
  AddBias(bias, &tensors);
  if (kind_.ending.has_sum) {
    const auto given = Laid(last() - 1);
    const MemoryDescObject* wanted = Wanted(desc, kArgumentDesc, PostOp(0) | kAddend);
    tensors.emplace_back(PostOp(0) | kAddend,
                         kernel_->AddInput(args_[last() - 1], given.get(), wanted));
  }
  AddResultAndCall(desc, Laid(last()), std::move(tensors));
}

std::string WhyNot(const OpDescription& op) {
  return WhyNotFloats(op, Multiplies::kYes,
                      op.ends().has_bias ? std::vector<size_t>{2} : std::vector<size_t>{});
}

const RegisteredMaker<ConvMaker> kRegistered("conv2d", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

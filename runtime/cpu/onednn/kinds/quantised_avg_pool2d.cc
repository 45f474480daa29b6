#include "runtime/core/operators/quantised_avg_pool2d.h"

#include <string>

#include "runtime/core/shapes.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"
#include "runtime/cpu/onednn/pooling.h"

namespace tvm_interop {
namespace onednn {
namespace {

class QuantisedAvgPoolMaker : public MakerOf<QuantisedAvgPool2d> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void QuantisedAvgPoolMaker::Make() {
  const auto source = ChannelsLast(0), result = ChannelsLast(last());
  const auto attributes = MakeAttributes(api_, kind_.ends(), kind_.integers.steps, {});
  const auto desc =
      PoolDesc(api_, engine_, kind_.window, MeanOf(kind_.counts_padding), attributes, source,
               ChannelsFirst(op_.shapes[0]), result, ChannelsFirst(op_.shapes[1]));
  kernel_->AddPrimitive(desc.get(), {{kSource, kernel_->AddArgument(args_[0], source.get())},
                                     {kDestination, kernel_->AddArgument(args_[1], result.get())}});
}

std::string WhyNot(const OpDescription& op) {
  const std::string mistyped = WhyNotMovedIntegers(op);
  const auto& mean = dynamic_cast<const QuantisedAvgPool2d&>(op);
  if (!mistyped.empty() || !mean.counts_padding) return mistyped;
  return WhyNotMean(mean.window, ChannelsFirst(op.shapes[0]), ChannelsFirst(op.shapes[1]));
}

const RegisteredMaker<QuantisedAvgPoolMaker> kRegistered("quantised_avg_pool2d", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

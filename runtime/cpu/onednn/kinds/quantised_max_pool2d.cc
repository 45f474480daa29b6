#include "runtime/core/operators/quantised_max_pool2d.h"

#include <string>

#include "runtime/core/shapes.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"
#include "runtime/cpu/onednn/pooling.h"

namespace tvm_interop {
namespace onednn {
namespace {

class QuantisedMaxPoolMaker : public MakerOf<QuantisedMaxPool2d> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void QuantisedMaxPoolMaker::Make() {
  const auto source = ChannelsLast(0), result = ChannelsLast(last());
  const auto attributes = MakeAttributes(api_, kind_.ends(), {}, {});
  const auto desc = PoolDesc(api_, engine_, kind_.window, kPoolingMax, attributes, source,
                             ChannelsFirst(op_.shapes[0]), result, ChannelsFirst(op_.shapes[1]));
  kernel_->AddPrimitive(desc.get(), {{kSource, kernel_->AddArgument(args_[0], source.get())},
                                     {kDestination, kernel_->AddArgument(args_[1], result.get())}});
}

std::string WhyNot(const OpDescription& op) { return WhyNotMovedIntegers(op); }

const RegisteredMaker<QuantisedMaxPoolMaker> kRegistered("quantised_max_pool2d", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

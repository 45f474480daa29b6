#include "runtime/core/operators/avg_pool2d.h"

#include <string>

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"
#include "runtime/cpu/onednn/pooling.h"

namespace tvm_interop {
namespace onednn {
namespace {

class AvgPoolMaker : public MakerOf<AvgPool2d> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void AvgPoolMaker::Make() {
  const auto source = Inner(0, Moved()), result = Inner(last(), Moved());
  const auto attributes = MakeAttributes(api_, kind_.ends(), {}, {});
  const auto desc = PoolDesc(api_, engine_, kind_.window, MeanOf(kind_.counts_padding), attributes,
                             source, op_.shapes[0], result, op_.shapes.back());
  BindUnary(desc.get(), source.get());
}

std::string WhyNot(const OpDescription& op) {
  const std::string mistyped = WhyNotFloats(op, Multiplies::kNo, {});
  const auto& mean = dynamic_cast<const AvgPool2d&>(op);
  if (!mistyped.empty() || !mean.counts_padding) return mistyped;
  return WhyNotMean(mean.window, op.shapes[0], op.shapes[1]);
}

const RegisteredMaker<AvgPoolMaker> kRegistered("avg_pool2d", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

#include "runtime/core/operators/max_pool2d.h"

#include <string>

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"
#include "runtime/cpu/onednn/pooling.h"

namespace tvm_interop {
namespace onednn {
namespace {

class MaxPoolMaker : public MakerOf<MaxPool2d> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void MaxPoolMaker::Make() {
  const auto source = Inner(0, Moved()), result = Inner(last(), Moved());
  const auto attributes = MakeAttributes(api_, kind_.ends(), {}, {});
  const auto desc = PoolDesc(api_, engine_, kind_.window, kPoolingMax, attributes, source,
                             op_.shapes[0], result, op_.shapes.back());
  BindUnary(desc.get(), source.get());
}

std::string WhyNot(const OpDescription& op) { return WhyNotFloats(op, Multiplies::kNo, {}); }

const RegisteredMaker<MaxPoolMaker> kRegistered("max_pool2d", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

#include "runtime/core/operators/reorder.h"

#include <string>

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

class ReorderMaker : public MakerOf<Reorder> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void ReorderMaker::Make() {
  const auto from = Laid(0), to = Laid(1);
  const int source = kernel_->AddArgument(args_[0], from.get());
  kernel_->AddReorder(source, kernel_->AddArgument(args_[1], to.get()));
}

std::string WhyNot(const OpDescription& op) { return WhyNotFloats(op, Multiplies::kNo, {}); }

const RegisteredMaker<ReorderMaker> kRegistered("reorder", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

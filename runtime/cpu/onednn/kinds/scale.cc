#include "runtime/core/operators/scale.h"

#include <string>
#include <utility>
#include <vector>

#include "runtime/cpu/onednn/kind_function.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

TVM_INTEROP_ONEDNN_NUMBER(kMultiply, 0x1fff1, binary_mul)
TVM_INTEROP_ONEDNN_FUNCTION(int, binary_primitive_desc_create,
                            (PrimitiveDesc*, Engine, int algorithm, const MemoryDescObject* first,
                             const MemoryDescObject* second, const MemoryDescObject* destination,
                             Attributes))

class ScaleMaker : public MakerOf<Scale> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

// Makes a kernel that multiplies by the factor and then adds the bias.
void ScaleMaker::Make() {
  const auto source = Inner(0, Stored(0)), result = Inner(last(), Stored(last()));
  const auto factor = descs_.Any(op_.shapes[1], Stored(1));
  const auto bias = descs_.Any({1, op_.shapes[0][1], 1, 1}, kFloat32);
  std::vector<const MemoryDescObject*> addends;
  if (kind_.ending.has_bias) addends.push_back(bias.get());
  const auto attributes = MakeAttributes(api_, kind_.ending, {}, addends);
  PrimitiveDesc made = nullptr;
  Check(binary_primitive_desc_create(api_, &made, engine_, kMultiply, source.get(), factor.get(),
                                     result.get(), attributes.get()),
        "a product");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  const auto given = Laid(0), given_factor = descs_.Plain(op_.shapes[1], Stored(1));
  std::vector<std::pair<int, int>> tensors{
      {kSource, kernel_->AddInput(args_[0], given.get(), source.get())},
      {kSecondSource, kernel_->AddInput(args_[1], given_factor.get(),
                                        Wanted(made, kArgumentDesc, kSecondSource))}};
  if (kind_.ending.has_bias) {
    const int which = PostOp(0) | kAddend;
    const auto given_bias = descs_.Plain({1, op_.shapes[0][1], 1, 1}, kFloat32);
    tensors.emplace_back(
        which, kernel_->AddInput(args_[2], given_bias.get(), Wanted(made, kArgumentDesc, which)));
  }
  AddResultAndCall(made, Laid(last()), std::move(tensors));
}

std::string WhyNot(const OpDescription& op) {
  return WhyNotFloats(op, Multiplies::kNo,
                      op.ends().has_bias ? std::vector<size_t>{2} : std::vector<size_t>{});
}

const RegisteredMaker<ScaleMaker> kRegistered("scale", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

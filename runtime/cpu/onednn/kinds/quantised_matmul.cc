#include "runtime/core/operators/quantised_matmul.h"

#include <string>

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/quantised.h"

namespace tvm_interop {
namespace onednn {
namespace {

class QuantisedMatmulMaker : public QuantisedMaker<QuantisedMatmul> {
 public:
  using QuantisedMaker::QuantisedMaker;
  void Make() override;
};

void QuantisedMatmulMaker::Make() {
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
      kind_.ending.has_sum ? descs_.Plain(result_shape, Stored(last() - 1)) : Owned<MemoryDesc>();
  const auto attributes = QuantisedAttributes(1 << (right.size() - 1), addend);
  PrimitiveDesc made = nullptr;
  Check(api_.matmul_primitive_desc_create(&made, engine_, source.get(), weights.get(), bias.get(),
                                          result.get(), attributes.get()),
        "a quantised matrix product");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  BindQuantised(made, source, given, bias, addend, result);
}

std::string WhyNot(const OpDescription& op) { return WhyNotIntegers(op); }

const RegisteredMaker<QuantisedMatmulMaker> kRegistered("quantised_matmul", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

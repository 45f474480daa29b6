#include "runtime/core/operators/lrn.h"

#include <string>

#include "runtime/cpu/onednn/kind_function.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

TVM_INTEROP_ONEDNN_NUMBER(kAcrossChannels, 0xaff, lrn_across_channels)
TVM_INTEROP_ONEDNN_FUNCTION(int, lrn_forward_primitive_desc_create,
                            (PrimitiveDesc*, Engine, int prop_kind, int algorithm,
                             const MemoryDescObject* source, const MemoryDescObject* destination,
                             int64_t size, float alpha, float beta, float bias, Attributes))

class LrnMaker : public MakerOf<Lrn> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void LrnMaker::Make() {
  const auto source = Inner(0, Moved()), result = Inner(last(), Moved());
  const auto attributes = MakeAttributes(api_, kind_.ends(), {}, {});
  PrimitiveDesc made = nullptr;
  Check(lrn_forward_primitive_desc_create(api_, &made, engine_, kForwardInference, kAcrossChannels,
                                          source.get(), result.get(), kind_.size, kind_.alpha,
                                          kind_.beta, kind_.bias, attributes.get()),
        "a local response normalisation");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  BindUnary(desc.get(), source.get());
}

std::string WhyNot(const OpDescription& op) { return WhyNotFloats(op, Multiplies::kNo, {}); }

const RegisteredMaker<LrnMaker> kRegistered("lrn", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

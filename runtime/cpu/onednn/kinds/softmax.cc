#include "runtime/core/operators/softmax.h"

#include <string>

#include "runtime/cpu/onednn/kind_function.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

TVM_INTEROP_ONEDNN_NUMBER(kAccurate, 0x30000, softmax_accurate)
TVM_INTEROP_ONEDNN_FUNCTION(int, softmax_forward_primitive_desc_create,
                            (PrimitiveDesc*, Engine, int prop_kind, int algorithm,
                             const MemoryDescObject* source, const MemoryDescObject* destination,
                             int axis, Attributes))

class SoftmaxMaker : public MakerOf<Softmax> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void SoftmaxMaker::Make() {
  const auto data = descs_.Plain(op_.shapes[0], Stored(0));
  // The primitive writes float32. If it wrote bfloat16, oneDNN would round the numbers that it adds
  // up, and round the result once more at the end.
  const auto result = descs_.Plain(op_.shapes[0], kFloat32);
  const auto attributes = MakeAttributes(api_, kind_.ends(), {}, {});
  PrimitiveDesc made = nullptr;
  Check(softmax_forward_primitive_desc_create(
            api_, &made, engine_, kForwardInference, kAccurate, data.get(), result.get(),
            static_cast<int>(op_.shapes[0].size()) - 1, attributes.get()),
        "a softmax");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  BindUnary(made, data.get());
}

std::string WhyNot(const OpDescription& op) { return WhyNotFloats(op, Multiplies::kNo, {}); }

const RegisteredMaker<SoftmaxMaker> kRegistered("softmax", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

#include "runtime/core/operators/layer_norm.h"

#include <string>

#include "runtime/cpu/onednn/kind_function.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

TVM_INTEROP_ONEDNN_NUMBER(kUseScale, 2, use_scale)
TVM_INTEROP_ONEDNN_NUMBER(kUseShift, 4, use_shift)
TVM_INTEROP_ONEDNN_FUNCTION(int, layer_normalization_forward_primitive_desc_create,
                            (PrimitiveDesc*, Engine, int prop_kind, const MemoryDescObject* source,
                             const MemoryDescObject* destination,
                             const MemoryDescObject* statistics, float epsilon, unsigned flags,
                             Attributes))

class LayerNormMaker : public MakerOf<LayerNorm> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void LayerNormMaker::Make() {
  // oneDNN supports only a few dimensions, so the data is described as a matrix. Its rows are
  // normalised.
  const int64_t size = op_.shapes[0].back();
  const Shape rows{Product(op_.shapes[0]) / size, size};
  const auto data = descs_.Plain(rows, Stored(0)), result = descs_.Plain(rows, Stored(3));
  const auto numbers = descs_.Plain({size}, kFloat32);
  const auto attributes = MakeAttributes(api_, kind_.ends(), {}, {});
  PrimitiveDesc made = nullptr;
  Check(layer_normalization_forward_primitive_desc_create(
            api_, &made, engine_, kForwardInference, data.get(), result.get(), nullptr,
            kind_.epsilon, kUseScale | kUseShift, attributes.get()),
        "a layer normalisation");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  kernel_->AddPrimitive(made, {{kSource, kernel_->AddArgument(args_[0], data.get())},
                               {kScale, kernel_->AddArgument(args_[1], numbers.get())},
                               {kShift, kernel_->AddArgument(args_[2], numbers.get())},
                               {kDestination, kernel_->AddArgument(args_[3], result.get())}});
}

std::string WhyNot(const OpDescription& op) { return WhyNotFloats(op, Multiplies::kNo, {1, 2}); }

const RegisteredMaker<LayerNormMaker> kRegistered("layer_norm", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

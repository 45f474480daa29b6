#include "runtime/core/operators/resize2d.h"

#include <algorithm>
#include <string>

#include "runtime/cpu/onednn/kind_function.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

TVM_INTEROP_ONEDNN_NUMBER(kNearest, 0x2fff0, resampling_nearest)
TVM_INTEROP_ONEDNN_NUMBER(kLinear, 0x2fff1, resampling_linear)
TVM_INTEROP_ONEDNN_FUNCTION(int, resampling_forward_primitive_desc_create,
                            (PrimitiveDesc*, Engine, int prop_kind, int algorithm,
                             const float* factors, const MemoryDescObject* source,
                             const MemoryDescObject* destination, Attributes))

class Resize2dMaker : public MakerOf<Resize2d> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
};

void Resize2dMaker::Make() {
  const auto source = Inner(0, Moved()), result = Inner(last(), Moved());
  const auto attributes = MakeAttributes(api_, kind_.ends(), {}, {});
  const int algorithm = kind_.is_linear ? kLinear : kNearest;
  PrimitiveDesc made = nullptr;
  Check(resampling_forward_primitive_desc_create(api_, &made, engine_, kForwardInference, algorithm,
                                                 nullptr, source.get(), result.get(),
                                                 attributes.get()),
        "a resize");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  BindUnary(desc.get(), source.get());
}

// The longest side that is allowed, in pixels. oneDNN computes positions in float32, and a large
// position leaves few bits for the fraction.
constexpr int64_t kMostPixels = int64_t{1} << 16;

std::string WhyNot(const OpDescription& op) {
  const auto& from = op.shapes[0];
  const auto& to = op.shapes[1];
  if (std::max({from[2], from[3], to[2], to[3]}) > kMostPixels)
    return "has a side that is too long";
  return WhyNotFloats(op, Multiplies::kNo, {});
}

const RegisteredMaker<Resize2dMaker> kRegistered("resize2d", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

#include "runtime/core/operators/layer_norm.h"

namespace tvm_interop {
namespace {

const RegisteredKind<LayerNorm> kRegistered("layer_norm");

}  // namespace

std::string LayerNorm::WhyWrong() const {
  const auto& data = shapes.front();
  if (data.size() < 2 || shapes.back() != data) return "changes the shape";
  for (int i : {1, 2}) {
    if (shapes[i] != std::vector<int64_t>{data.back()}) {
      return "needs a scale and a shift of " + std::to_string(data.back()) + " numbers";
    }
  }
  return epsilon >= 0 ? "" : "has a negative epsilon";
}

void LayerNorm::VisitFields(Fields* fields) { fields->Visit("epsilon", &epsilon); }

}  // namespace tvm_interop

#include "runtime/core/operators/scale.h"

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<Scale> kRegistered("scale");

}  // namespace

std::string Scale::WhyWrong() const {
  const auto& data = shapes.front();
  const auto& factor = shapes[1];
  if (data.size() != 4 || factor.size() != 4 || shapes.back() != data) {
    return "needs data, factor and output of four dimensions, and changes no shape";
  }
  const bool fits = (factor[0] == 1 || factor[0] == data[0]) && factor[1] == data[1] &&
                    factor[2] == 1 && factor[3] == 1;
  if (!fits) return "cannot scale the channels of " + Text(data) + " by " + Text(factor);
  if (ending.has_bias && NumElements(shapes[2]) != data[1]) {
    return "needs a bias of " + std::to_string(data[1]) + " numbers";
  }
  return ending.has_sum ? "adds no tensor" : "";
}

void Scale::VisitFields(Fields* fields) { ending.Visit(fields); }

}  // namespace tvm_interop

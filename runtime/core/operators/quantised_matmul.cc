#include "runtime/core/operators/quantised_matmul.h"

#include "runtime/core/operators/matmul.h"
#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<QuantisedMatmul> kRegistered("quantised_matmul");

}  // namespace

std::string QuantisedMatmul::WhyWrong() const {
  const std::string why = integers.WhyWrong(ending.has_sum);
  if (!why.empty()) return why;
  if (shapes.back().empty()) return "needs matrices";
  if (NumElements(shapes[2]) != shapes.back().back()) {
    return "needs a scale of " + std::to_string(shapes.back().back()) + " numbers";
  }
  return WhyNoProduct(shapes[0], shapes[1], ending.has_bias ? &shapes[3] : nullptr, shapes.back());
}

void QuantisedMatmul::VisitFields(Fields* fields) {
  ending.Visit(fields);
  integers.Visit(fields);
}

}  // namespace tvm_interop

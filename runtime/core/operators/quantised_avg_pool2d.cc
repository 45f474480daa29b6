#include "runtime/core/operators/quantised_avg_pool2d.h"

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<QuantisedAvgPool2d> kRegistered("quantised_avg_pool2d");

}  // namespace

std::string QuantisedAvgPool2d::WhyWrong() const {
  const std::string why = integers.WhyWrong(false);
  if (!why.empty()) return why;
  if (shapes[0].size() != 4 || shapes[1].size() != 4) {
    return "needs data and output of four dimensions";
  }
  return WhyNoPooling(window, ChannelsFirst(shapes[0]), ChannelsFirst(shapes[1]));
}

void QuantisedAvgPool2d::VisitFields(Fields* fields) {
  window.Visit(fields);
  fields->Visit("counts_padding", &counts_padding);
  integers.Visit(fields);
}

}  // namespace tvm_interop

#include "runtime/core/operators/quantised_conv2d.h"

#include "runtime/core/operators/conv2d.h"
#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<QuantisedConv2d> kRegistered("quantised_conv2d");

}  // namespace

std::string QuantisedConv2d::WhyWrong() const {
  const std::string why = integers.WhyWrong(ending.has_sum);
  if (!why.empty()) return why;
  if (shapes.front().size() != 4 || shapes.back().size() != 4) {
    return "needs data and output of four dimensions";
  }
  if (NumElements(shapes[2]) != shapes.back().back()) {
    return "needs a scale of " + std::to_string(shapes.back().back()) + " numbers";
  }
  return WhyNoConvolution(window, groups, ChannelsFirst(shapes[0]), shapes[1],
                          ending.has_bias ? &shapes[3] : nullptr, ChannelsFirst(shapes.back()));
}

void QuantisedConv2d::VisitFields(Fields* fields) {
  window.Visit(fields);
  fields->Visit("groups", &groups);
  ending.Visit(fields);
  integers.Visit(fields);
}

}  // namespace tvm_interop

#include "runtime/core/operators/quantised_max_pool2d.h"

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<QuantisedMaxPool2d> kRegistered("quantised_max_pool2d");

}  // namespace

std::string QuantisedMaxPool2d::WhyWrong() const {
  if (shapes[0].size() != 4 || shapes[1].size() != 4) {
    return "needs data and output of four dimensions";
  }
  return WhyNoPooling(window, ChannelsFirst(shapes[0]), ChannelsFirst(shapes[1]));
}

void QuantisedMaxPool2d::VisitFields(Fields* fields) { window.Visit(fields); }

}  // namespace tvm_interop

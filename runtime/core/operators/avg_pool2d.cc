#include "runtime/core/operators/avg_pool2d.h"

namespace tvm_interop {
namespace {

const RegisteredKind<AvgPool2d> kRegistered("avg_pool2d");

}  // namespace

std::string AvgPool2d::WhyWrong() const {
  if (shapes[0].size() != 4 || shapes[1].size() != 4) {
    return "needs data and output of four dimensions";
  }
  return WhyNoPooling(window, shapes[0], shapes[1]);
}

void AvgPool2d::VisitFields(Fields* fields) {
  window.Visit(fields);
  fields->Visit("counts_padding", &counts_padding);
}

}  // namespace tvm_interop

#include "runtime/core/operators/max_pool2d.h"

namespace tvm_interop {
namespace {

const RegisteredKind<MaxPool2d> kRegistered("max_pool2d");

}  // namespace

std::string MaxPool2d::WhyWrong() const {
  if (shapes[0].size() != 4 || shapes[1].size() != 4) {
    return "needs data and output of four dimensions";
  }
  return WhyNoPooling(window, shapes[0], shapes[1]);
}

void MaxPool2d::VisitFields(Fields* fields) { window.Visit(fields); }

}  // namespace tvm_interop

#ifndef RUNTIME_CORE_OPERATORS_QUANTISED_MAX_POOL2D_H_
#define RUNTIME_CORE_OPERATORS_QUANTISED_MAX_POOL2D_H_

#include <string>

#include "runtime/core/op_description.h"
#include "runtime/core/window.h"

namespace tvm_interop {

// A 2-D max pooling of 8-bit integers. The data and the result are (N,H,W,C) and have the same
// type.
struct QuantisedMaxPool2d : OpDescription {
  Window window;

  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  bool is_quantised() const override { return true; }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_QUANTISED_MAX_POOL2D_H_

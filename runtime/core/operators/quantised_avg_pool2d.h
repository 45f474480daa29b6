#ifndef RUNTIME_CORE_OPERATORS_QUANTISED_AVG_POOL2D_H_
#define RUNTIME_CORE_OPERATORS_QUANTISED_AVG_POOL2D_H_

#include <string>

#include "runtime/core/integers.h"
#include "runtime/core/op_description.h"
#include "runtime/core/window.h"

namespace tvm_interop {

// A 2-D average pooling of 8-bit integers. The data and the result are (N,H,W,C) and have the same
// type. The steps of `integers` are applied to the mean before it is rounded.
struct QuantisedAvgPool2d : OpDescription {
  Window window;
  // Whether the mean includes the padding as elements that are 0.
  bool counts_padding = false;
  Integers integers;

  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  bool is_quantised() const override { return true; }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_QUANTISED_AVG_POOL2D_H_

#ifndef RUNTIME_CORE_OPERATORS_QUANTISED_AVG_POOL2D_H_
#define RUNTIME_CORE_OPERATORS_QUANTISED_AVG_POOL2D_H_

#include <string>

#include "runtime/core/integers.h"
#include "runtime/core/op_description.h"
#include "runtime/core/window.h"

namespace tvm_interop {

// The mean of the integers of each window: data (N,H,W,C), numbers of one type throughout. The
// steps are done to the mean, before it is rounded.
struct QuantisedAvgPool2d : OpDescription {
  Window window;
  bool counts_padding = false;  // As integers 0.
  Integers integers;

  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  bool is_quantised() const override { return true; }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_QUANTISED_AVG_POOL2D_H_

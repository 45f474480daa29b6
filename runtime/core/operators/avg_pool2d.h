#ifndef RUNTIME_CORE_OPERATORS_AVG_POOL2D_H_
#define RUNTIME_CORE_OPERATORS_AVG_POOL2D_H_

#include <string>

#include "runtime/core/op_description.h"
#include "runtime/core/window.h"

namespace tvm_interop {

// A 2-D average pooling: the mean of each window. The data and the result are (N,C,H,W).
struct AvgPool2d : OpDescription {
  Window window;
  bool counts_padding = false;  // Whether the mean includes the padding, which counts as zeros.

  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_AVG_POOL2D_H_

#ifndef RUNTIME_CORE_OPERATORS_AVG_POOL2D_H_
#define RUNTIME_CORE_OPERATORS_AVG_POOL2D_H_

#include <string>

#include "runtime/core/op_description.h"
#include "runtime/core/window.h"

namespace tvm_interop {

// The mean of each window: data (N,C,H,W).
struct AvgPool2d : OpDescription {
  Window window;
  bool counts_padding = false;  // As zeros.

  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_AVG_POOL2D_H_

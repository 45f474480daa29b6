#ifndef RUNTIME_CORE_OPERATORS_RESIZE2D_H_
#define RUNTIME_CORE_OPERATORS_RESIZE2D_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// Data (N,C,H,W) with other H and W. Row `y` of the result lies at (y + 1/2) * H / rows - 1/2 of
// the data, and so do columns.
struct Resize2d : OpDescription {
  // Whether a pixel is a mean of the four around its place; else it is the nearest.
  bool is_linear = false;

  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_RESIZE2D_H_

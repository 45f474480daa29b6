#ifndef RUNTIME_CORE_OPERATORS_RESIZE2D_H_
#define RUNTIME_CORE_OPERATORS_RESIZE2D_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// Resizes images (N,C,H,W) to another height and width. Row `y` of the result is at position (y +
// 1/2) * H / rows - 1/2 of the data, where `rows` is the height of the result. The same formula
// holds for columns.
struct Resize2d : OpDescription {
  // Whether each pixel is interpolated linearly between the four pixels around its position.
  // Otherwise it is a copy of the nearest pixel.
  bool is_linear = false;

  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_RESIZE2D_H_

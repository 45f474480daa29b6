#ifndef RUNTIME_CORE_OPERATORS_WINOGRAD_CONV2D_H_
#define RUNTIME_CORE_OPERATORS_WINOGRAD_CONV2D_H_

#include <string>

#include "runtime/core/operators/conv2d.h"

namespace tvm_interop {

// A convolution with a window of 3x3 and strides of 1, computed by Winograd's algorithm F(4x4,3x3).
// Its fields and arguments are those of `Conv2d`.
struct WinogradConv2d : Conv2d {
  std::string WhyWrong() const override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_WINOGRAD_CONV2D_H_

#ifndef RUNTIME_CORE_OPERATORS_CONV2D_H_
#define RUNTIME_CORE_OPERATORS_CONV2D_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/core/window.h"

namespace tvm_interop {

// A 2-D convolution. Its arguments are data (N,C,H,W), weight (O,C/groups,KH,KW), optionally a bias
// of O numbers, optionally a tensor to add that has the output's shape, and the output.
struct Conv2d : OpDescription {
  Window window;
  int64_t groups = 1;
  Ending ending;
  // Whether float32 numbers may be rounded to TF32 before they are multiplied. TF32 keeps 10 of the
  // 23 bits of the mantissa.
  bool allow_tf32 = false;

  size_t NumArguments() const override { return 3 + ending.has_bias + ending.has_sum; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  const Ending& ends() const override { return ending; }
  // The data may be a part of a larger tensor, cut along its rows.
  bool MayCut(int64_t argument, int64_t axis) const override { return argument == 0 && axis == 2; }
};

// Returns the fault of a convolution of these shapes, or an empty string if there is none. `data`
// and `output` are N,C,H,W. `bias` is null if there is no bias.
std::string WhyNoConvolution(const Window& window, int64_t groups, const std::vector<int64_t>& data,
                             const std::vector<int64_t>& weight, const std::vector<int64_t>* bias,
                             const std::vector<int64_t>& output);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_CONV2D_H_

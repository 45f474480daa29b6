#ifndef RUNTIME_CORE_OPERATORS_CONV2D_H_
#define RUNTIME_CORE_OPERATORS_CONV2D_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/core/window.h"

namespace tvm_interop {

// Data (N,C,H,W), weight (O,C/groups,KH,KW) [, bias O] [, sum, as the output].
struct Conv2d : OpDescription {
  Window window;
  int64_t groups = 1;
  Ending ending;
  // Whether products of float32 may be made of factors rounded to TF32, which has 10 bits of 23.
  bool allow_tf32 = false;

  size_t NumArguments() const override { return 3 + ending.has_bias + ending.has_sum; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  const Ending& ends() const override { return ending; }
  // By rows.
  bool MayCut(int64_t argument, int64_t axis) const override { return argument == 0 && axis == 2; }
};

// What is wrong with a convolution of these shapes, images N,C,H,W. `bias` is null for none.
std::string WhyNoConvolution(const Window& window, int64_t groups, const std::vector<int64_t>& data,
                             const std::vector<int64_t>& weight, const std::vector<int64_t>* bias,
                             const std::vector<int64_t>& output);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_CONV2D_H_

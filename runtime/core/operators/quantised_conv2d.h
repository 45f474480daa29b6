#ifndef RUNTIME_CORE_OPERATORS_QUANTISED_CONV2D_H_
#define RUNTIME_CORE_OPERATORS_QUANTISED_CONV2D_H_

#include <cstdint>
#include <string>

#include "runtime/core/integers.h"
#include "runtime/core/op_description.h"
#include "runtime/core/window.h"

namespace tvm_interop {

// A 2-D convolution of 8-bit integers. Its arguments are data (N,H,W,C), weight (O,C/groups,KH,KW),
// a scale of O numbers, optionally a bias of O numbers, optionally a tensor to add (N,H,W,O), and
// the output (N,H,W,O).
struct QuantisedConv2d : OpDescription {
  Window window;
  int64_t groups = 1;
  Ending ending;
  Integers integers;

  size_t NumArguments() const override { return 4 + ending.has_bias + ending.has_sum; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  const Ending& ends() const override { return ending; }
  bool is_quantised() const override { return true; }
  // If there is a single image, the data may be a part of a larger tensor, cut along its rows.
  bool MayCut(int64_t argument, int64_t axis) const override {
    return argument == 0 && axis == 1 && shapes[0][0] == 1;
  }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_QUANTISED_CONV2D_H_

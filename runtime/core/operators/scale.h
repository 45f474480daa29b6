#ifndef RUNTIME_CORE_OPERATORS_SCALE_H_
#define RUNTIME_CORE_OPERATORS_SCALE_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// Multiplies each channel by a factor. The arguments are data (N,C,H,W), factor (N or 1,C,1,1),
// optionally a bias of C numbers, and the output.
struct Scale : OpDescription {
  Ending ending;  // A scale cannot add a tensor, so `has_sum` must be false.

  size_t NumArguments() const override { return 3 + ending.has_bias + ending.has_sum; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  const Ending& ends() const override { return ending; }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_SCALE_H_

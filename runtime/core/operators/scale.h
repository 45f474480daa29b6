#ifndef RUNTIME_CORE_OPERATORS_SCALE_H_
#define RUNTIME_CORE_OPERATORS_SCALE_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// Data (N,C,H,W) times a factor (N or 1,C,1,1) [, bias C].
struct Scale : OpDescription {
  Ending ending;  // It adds no tensor.

  size_t NumArguments() const override { return 3 + ending.has_bias + ending.has_sum; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  const Ending& ends() const override { return ending; }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_SCALE_H_

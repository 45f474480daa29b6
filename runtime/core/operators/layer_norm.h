#ifndef RUNTIME_CORE_OPERATORS_LAYER_NORM_H_
#define RUNTIME_CORE_OPERATORS_LAYER_NORM_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// A layer normalisation along the last axis. Its arguments are data (...,C), a scale of C numbers,
// a shift of C numbers, and the output.
struct LayerNorm : OpDescription {
  float epsilon = 0;  // The number that is added to the variance.

  size_t NumArguments() const override { return 4; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_LAYER_NORM_H_

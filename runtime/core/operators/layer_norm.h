#ifndef RUNTIME_CORE_OPERATORS_LAYER_NORM_H_
#define RUNTIME_CORE_OPERATORS_LAYER_NORM_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// Data (...,C), scale C, shift C: normalised along the last axis.
struct LayerNorm : OpDescription {
  float epsilon = 0;  // Added to the variance.

  size_t NumArguments() const override { return 4; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_LAYER_NORM_H_

#ifndef RUNTIME_CORE_OPERATORS_SOFTMAX_H_
#define RUNTIME_CORE_OPERATORS_SOFTMAX_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// The softmax of a tensor along its last axis.
struct Softmax : OpDescription {
  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_SOFTMAX_H_

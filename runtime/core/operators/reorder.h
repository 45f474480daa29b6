#ifndef RUNTIME_CORE_OPERATORS_REORDER_H_
#define RUNTIME_CORE_OPERATORS_REORDER_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// Copies a tensor from one layout to another.
struct Reorder : OpDescription {
  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_REORDER_H_

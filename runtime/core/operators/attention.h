#ifndef RUNTIME_CORE_OPERATORS_ATTENTION_H_
#define RUNTIME_CORE_OPERATORS_ATTENTION_H_

#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// Scaled dot-product attention: softmax(queries * keys^T * scale + mask) * values, for each head.
// Its arguments are queries (...,M,K), keys (...,K,N) or (...,N,K), values (...,N,V), optionally a
// mask that broadcasts to (...,M,N), and the output (...,M,V). All have the same number of axes.
struct Attention : OpDescription {
  float scale = 1;
  bool has_mask = false;
  bool keys_by_position = false;  // Whether the keys are given as (...,N,K).

  size_t NumArguments() const override { return 4 + has_mask; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_ATTENTION_H_

#ifndef RUNTIME_CORE_OPERATORS_LRN_H_
#define RUNTIME_CORE_OPERATORS_LRN_H_

#include <cstdint>
#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// A local response normalisation across channels; the data and the result are (N,C,H,W). It divides
// each element by (bias + alpha / size * sum of squares) to the power of beta. The sum goes over
// `size` neighbouring channels.
struct Lrn : OpDescription {
  int64_t size = 0;
  float alpha = 0;
  float beta = 0;
  float bias = 0;

  size_t NumArguments() const override { return 2; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_LRN_H_

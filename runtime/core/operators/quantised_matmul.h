#ifndef RUNTIME_CORE_OPERATORS_QUANTISED_MATMUL_H_
#define RUNTIME_CORE_OPERATORS_QUANTISED_MATMUL_H_

#include <string>

#include "runtime/core/integers.h"
#include "runtime/core/op_description.h"

namespace tvm_interop {

// A matrix product of 8-bit integers. Its arguments are left (...,M,K), right (...,K,N) or (K,N), a
// scale of N numbers, optionally a bias of N numbers, optionally a tensor to add that has the
// output's shape, and the output.
struct QuantisedMatmul : OpDescription {
  Ending ending;
  Integers integers;

  size_t NumArguments() const override { return 4 + ending.has_bias + ending.has_sum; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  const Ending& ends() const override { return ending; }
  bool is_quantised() const override { return true; }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_QUANTISED_MATMUL_H_

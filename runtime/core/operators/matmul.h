#ifndef RUNTIME_CORE_OPERATORS_MATMUL_H_
#define RUNTIME_CORE_OPERATORS_MATMUL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// Left (...,M,K), right (...,K,N) [, bias N] [, sum, as the output].
struct Matmul : OpDescription {
  Ending ending;
  bool allow_tf32 = false;  // As of a convolution.

  size_t NumArguments() const override { return 3 + ending.has_bias + ending.has_sum; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  const Ending& ends() const override { return ending; }
  // By columns of the right side.
  bool MayCut(int64_t argument, int64_t axis) const override {
    return argument == 1 && axis == static_cast<int64_t>(shapes[1].size()) - 1;
  }
};

// What is wrong with a matrix product of these shapes. `bias` is null for none.
std::string WhyNoProduct(const std::vector<int64_t>& left, const std::vector<int64_t>& right,
                         const std::vector<int64_t>* bias, const std::vector<int64_t>& output);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_MATMUL_H_

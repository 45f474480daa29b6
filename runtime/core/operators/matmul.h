#ifndef RUNTIME_CORE_OPERATORS_MATMUL_H_
#define RUNTIME_CORE_OPERATORS_MATMUL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// A matrix product. Its arguments are left (...,M,K), right (...,K,N) or (K,N), optionally a bias
// of N numbers, optionally a tensor to add that has the output's shape, and the output.
struct Matmul : OpDescription {
  Ending ending;
  // Whether float32 numbers may be rounded to TF32 before they are multiplied, as in `Conv2d`.
  bool allow_tf32 = false;

  size_t NumArguments() const override { return 3 + ending.has_bias + ending.has_sum; }
  std::string WhyWrong() const override;
  void VisitFields(Fields* fields) override;
  const Ending& ends() const override { return ending; }
  // The right matrix may be a part of a larger matrix, cut along its columns.
  bool MayCut(int64_t argument, int64_t axis) const override {
    return argument == 1 && axis == static_cast<int64_t>(shapes[1].size()) - 1;
  }
};

// Returns the fault of a matrix product of these shapes, or an empty string if there is none.
// `bias` is null if there is no bias.
std::string WhyNoProduct(const std::vector<int64_t>& left, const std::vector<int64_t>& right,
                         const std::vector<int64_t>* bias, const std::vector<int64_t>& output);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_MATMUL_H_

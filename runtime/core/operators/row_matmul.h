#ifndef RUNTIME_CORE_OPERATORS_ROW_MATMUL_H_
#define RUNTIME_CORE_OPERATORS_ROW_MATMUL_H_

#include <string>

#include "runtime/core/operators/matmul.h"

namespace tvm_interop {

// A product of a few rows and a matrix (K,N). Its kernel reads the matrix in the order in which it
// lies in memory. Its fields and arguments are those of `Matmul`.
struct RowMatmul : Matmul {
  std::string WhyWrong() const override;
  // A share computes some columns of the result. If there is only one row, the operator is not run
  // in shares: the compiler cuts the matrix into columns instead.
  bool HasShares() const override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_ROW_MATMUL_H_

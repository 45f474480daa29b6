#ifndef RUNTIME_CORE_OPERATORS_ROW_MATMUL_H_
#define RUNTIME_CORE_OPERATORS_ROW_MATMUL_H_

#include <string>

#include "runtime/core/operators/matmul.h"

namespace tvm_interop {

// A product of a few rows and a matrix (K,N), by a kernel that reads the matrix in the order of
// memory. Its fields and arguments are those of `Matmul`.
struct RowMatmul : Matmul {
  std::string WhyWrong() const override;
  // A share has some columns of the result. The product of a single row is cut into columns
  // instead.
  bool HasShares() const override;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OPERATORS_ROW_MATMUL_H_

#ifndef RUNTIME_CPU_ROWS_PRODUCT_H_
#define RUNTIME_CPU_ROWS_PRODUCT_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/core/operators/row_matmul.h"
#include "runtime/cpu/kernel_library.h"

namespace tvm_interop {
namespace rows {

// Returns why this CPU has no kernel for a well-formed operator, or an empty string if it has one.
// The text does not name the operator.
std::string WhyNot(const OpDescription& op);

// Makes a kernel that runs on up to `threads` threads. `WhyNot(op)` must be empty. See
// `KernelLibrary::Prepare`.
//
// The product of a few rows takes as long as reading the matrix. Memory is read fastest in order,
// so the matrix is packed in the order in which the kernel reads it (see `kernels.h`).
//
// The bits of a number of the result do not depend on the number of threads, or on other columns
// and rows.
std::unique_ptr<LibraryKernel> MakeProduct(const RowMatmul& op, int threads,
                                           const std::vector<KernelArgument>& args);

}  // namespace rows
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ROWS_PRODUCT_H_

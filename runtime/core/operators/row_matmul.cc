#include "runtime/core/operators/row_matmul.h"

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<RowMatmul> kRegistered("row_matmul");

}  // namespace

std::string RowMatmul::WhyWrong() const {
  const std::string wrong = Matmul::WhyWrong();
  if (!wrong.empty()) return wrong;
  if (NumElements(shapes[0]) != shapes[0].back() || shapes[1].size() != 2) {
    return "needs a single row and a single matrix, and has " + Text(shapes[0]) + " and " +
           Text(shapes[1]);
  }
  return "";
}

}  // namespace tvm_interop

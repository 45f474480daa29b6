#include "runtime/core/operators/row_matmul.h"

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<RowMatmul> kRegistered("row_matmul");

}  // namespace

std::string RowMatmul::WhyWrong() const {
  const std::string wrong = Matmul::WhyWrong();
  if (!wrong.empty()) return wrong;
  if (shapes[1].size() != 2) {
    return "needs a single right matrix, and has " + Text(shapes[1]);
  }
  return "";
}

bool RowMatmul::HasShares() const { return NumElements(shapes[0]) > shapes[0].back(); }

}  // namespace tvm_interop

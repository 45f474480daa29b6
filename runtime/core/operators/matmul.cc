#include "runtime/core/operators/matmul.h"

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

const RegisteredKind<Matmul> kRegistered("matmul");

}  // namespace

std::string Matmul::WhyWrong() const {
  return WhyNoProduct(shapes[0], shapes[1], ending.has_bias ? &shapes[2] : nullptr, shapes.back());
}

void Matmul::VisitFields(Fields* fields) {
  ending.Visit(fields);
  fields->Visit("allow_tf32", &allow_tf32);
}

std::string WhyNoProduct(const std::vector<int64_t>& left, const std::vector<int64_t>& right,
                         const std::vector<int64_t>* bias, const std::vector<int64_t>& output) {
  if (left.size() < 2 || right.size() < 2 || output.size() != left.size()) {
    return "needs matrices";
  }
  const int64_t k = left.back(), n = right.back();
  std::vector<int64_t> expected(left.begin(), left.end() - 1);
  expected.push_back(n);
  const bool same_batch =
      right.size() == 2 || std::vector<int64_t>(right.begin(), right.end() - 2) ==
                               std::vector<int64_t>(left.begin(), left.end() - 2);
  if (right[right.size() - 2] != k || output != expected || !same_batch) {
    return "cannot make " + Text(output) + " of " + Text(left) + " and " + Text(right);
  }
  if (bias != nullptr && NumElements(*bias) != n) {
    return "needs a bias of " + std::to_string(n) + " numbers";
  }
  return "";
}

}  // namespace tvm_interop

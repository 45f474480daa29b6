#include "runtime/core/operators/resize2d.h"

namespace tvm_interop {
namespace {

const RegisteredKind<Resize2d> kRegistered("resize2d");

}  // namespace

std::string Resize2d::WhyWrong() const {
  const auto& from = shapes[0];
  const auto& to = shapes[1];
  if (from.size() != 4 || to.size() != 4) return "needs data and output of four dimensions";
  if (from[0] != to[0] || from[1] != to[1]) return "changes the number of images or channels";
  return "";
}

void Resize2d::VisitFields(Fields* fields) { fields->Visit("is_linear", &is_linear); }

}  // namespace tvm_interop

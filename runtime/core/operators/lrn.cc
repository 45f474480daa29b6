#include "runtime/core/operators/lrn.h"

namespace tvm_interop {
namespace {

const RegisteredKind<Lrn> kRegistered("lrn");

}  // namespace

std::string Lrn::WhyWrong() const {
  if (shapes[0].size() != 4 || shapes[0] != shapes[1]) return "changes the shape";
  if (size < 1 || size % 2 == 0) {
    return "sums over " + std::to_string(size) + " channels; the number must be odd";
  }
  return "";
}

void Lrn::VisitFields(Fields* fields) {
  fields->Visit("lrn_size", &size);
  fields->Visit("lrn_alpha", &alpha);
  fields->Visit("lrn_beta", &beta);
  fields->Visit("lrn_bias", &bias);
}

}  // namespace tvm_interop

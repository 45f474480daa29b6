#include "runtime/core/operators/reorder.h"

namespace tvm_interop {
namespace {

const RegisteredKind<Reorder> kRegistered("reorder");

}  // namespace

std::string Reorder::WhyWrong() const { return shapes[0] == shapes[1] ? "" : "changes the shape"; }

}  // namespace tvm_interop

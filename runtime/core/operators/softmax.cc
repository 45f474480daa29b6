#include "runtime/core/operators/softmax.h"

namespace tvm_interop {
namespace {

const RegisteredKind<Softmax> kRegistered("softmax");

}  // namespace

std::string Softmax::WhyWrong() const { return shapes[0] == shapes[1] ? "" : "changes the shape"; }

}  // namespace tvm_interop

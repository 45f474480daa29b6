#include "runtime/cpu/vectors/last_of.h"

namespace tvm_interop {

Last LastOf(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return Last::kRelu;
    case Activation::kClip:
      return Last::kClip;
    case Activation::kSigmoid:
      return Last::kSigmoid;
    case Activation::kSwish:
      return Last::kSwish;
    case Activation::kHardSwish:
      return Last::kHardSwish;
    case Activation::kHardSigmoid:
      return Last::kHardSigmoid;
    case Activation::kGelu:
      return Last::kGelu;
    case Activation::kGeluTanh:
      return Last::kGeluTanh;
    default:
      return Last::kNothing;
  }
}

std::string WhyNotLast(Activation activation) {
  const bool can = activation == Activation::kNone || LastOf(activation) != Last::kNothing;
  return can ? "" : "ends with a function that it does not compute";
}

}  // namespace tvm_interop

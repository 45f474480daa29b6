#ifndef RUNTIME_CORE_ENDING_H_
#define RUNTIME_CORE_ENDING_H_

#include "runtime/core/fields.h"

namespace tvm_interop {

// The last steps of an operator, applied to each element of its result: add a bias, add a tensor,
// apply an activation. The steps run in this order, and each of them is optional.
struct Ending {
  bool has_bias = false;
  bool has_sum = false;
  Activation activation = Activation::kNone;
  float clip_low = 0;
  float clip_high = 0;

  void Visit(Fields* fields) {
    fields->Visit("has_bias", &has_bias);
    fields->Visit("has_sum", &has_sum);
    fields->Visit("activation", &activation);
    fields->Visit("clip_low", &clip_low);
    fields->Visit("clip_high", &clip_high);
  }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_ENDING_H_

#ifndef RUNTIME_CORE_ENDING_H_
#define RUNTIME_CORE_ENDING_H_

#include "runtime/core/fields.h"

namespace tvm_interop {

// What an operator does to each number of its result at the end: a bias, a tensor that is added,
// an activation, in this order.
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

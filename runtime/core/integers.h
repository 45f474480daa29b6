#ifndef RUNTIME_CORE_INTEGERS_H_
#define RUNTIME_CORE_INTEGERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/fields.h"

namespace tvm_interop {

// How a quantised operator turns 8-bit integers into its result.
//
// The operator subtracts each tensor's zero point from the tensor's integers and adds up their
// products in int32. It multiplies the sum by a scale, adds a bias, applies the steps and then
// applies the activation. The result stays float32, or it is rounded to int8 or uint8. A half is
// rounded to the nearest even number, and a value out of range becomes the nearest number in range.
// One of the steps may add a tensor of 8-bit integers.
struct Integers {
  int64_t data_zero = 0;
  int64_t weight_zero = 0;
  // The steps in the order in which they are applied, all before the activation.
  std::vector<Step> steps;

  void Visit(Fields* fields) {
    fields->Visit("data_zero", &data_zero);
    fields->Visit("weight_zero", &weight_zero);
    fields->Visit("steps", &steps);
  }

  // Returns a description of the first fault of the steps, or an empty string. `has_sum` says
  // whether the operator adds a tensor. If it does, exactly one step must add the tensor.
  std::string WhyWrong(bool has_sum) const {
    int added = 0;
    for (const Step& step : steps) {
      if (step.kind == StepKind::kClip && !(step.a <= step.b)) {
        return "has a step that clips to an empty range";
      }
      added += step.kind == StepKind::kAddTensor;
    }
    return added == has_sum ? ""
                            : "must add its tensor in a single step, and only a tensor that it has";
  }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_INTEGERS_H_

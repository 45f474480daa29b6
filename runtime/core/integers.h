#ifndef RUNTIME_CORE_INTEGERS_H_
#define RUNTIME_CORE_INTEGERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/fields.h"

namespace tvm_interop {

// How integers of 8 bits become the result. Products of integers, each less its tensor's zero
// point, are added up in int32. That times a scale, plus a bias, then the steps, then the
// activation, is the result: a float32, or rounded to int8 or uint8, halves to even; what is out of
// range becomes the nearest. One of the steps may add a tensor of integers of 8 bits.
struct Integers {
  int64_t data_zero = 0;
  int64_t weight_zero = 0;
  std::vector<Step> steps;  // In order; before the activation.

  void Visit(Fields* fields) {
    fields->Visit("data_zero", &data_zero);
    fields->Visit("weight_zero", &weight_zero);
    fields->Visit("steps", &steps);
  }

  // What is wrong with the steps of an operator that adds a tensor or does not.
  std::string WhyWrong(bool has_sum) const {
    int added = 0;
    for (const Step& step : steps) {
      if (step.kind == StepKind::kClip && !(step.a <= step.b)) {
        return "has a step that clips to an empty range";
      }
      added += step.kind == StepKind::kAddTensor;
    }
    return added == has_sum ? "" : "has a tensor to add that no single step adds";
  }
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_INTEGERS_H_

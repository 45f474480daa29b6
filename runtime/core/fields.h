#ifndef RUNTIME_CORE_FIELDS_H_
#define RUNTIME_CORE_FIELDS_H_

#include <cstdint>
#include <vector>

namespace tvm_interop {

// The function that an operator applies to each element of its result. Swish is x * sigmoid(x).
// Hard sigmoid is clip(x / 6 + 1 / 2, 0, 1), and hard swish is x times hard sigmoid.
enum class Activation {
  kNone,
  kRelu,
  kClip,
  kSigmoid,
  kTanh,
  kSwish,
  kHardSwish,
  kHardSigmoid,
  kGelu,
  kGeluTanh,
};

// One step on the way to a quantised result, applied to each element. For a clip, `Step::a` and
// `Step::b` are the lower and the upper bound. For a linear step, `a` is the factor and `b` the
// addend. A rounding step rounds a half to the nearest even number.
enum class StepKind { kClip, kRound, kLinear, kAddTensor };

struct Step {
  StepKind kind;
  float a = 0;
  float b = 0;
};

// Visits all fields of an operator except its tensors. Subclasses read the fields from a map or
// write them as text. `name` is the field's name in Python's `LibraryOp.fields`.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual void Visit(const char* name, bool* value) = 0;
  virtual void Visit(const char* name, int64_t* value) = 0;
  virtual void Visit(const char* name, float* value) = 0;
  virtual void Visit(const char* name, std::vector<int64_t>* value) = 0;
  virtual void Visit(const char* name, Activation* value) = 0;
  virtual void Visit(const char* name, std::vector<Step>* value) = 0;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_FIELDS_H_

#ifndef RUNTIME_CORE_FIELDS_H_
#define RUNTIME_CORE_FIELDS_H_

#include <cstdint>
#include <vector>

namespace tvm_interop {

// What is done to each number of the result. Swish is x * sigmoid(x), hard sigmoid
// clip(x / 6 + 1 / 2, 0, 1) and hard swish x times that.
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

// One thing that is done to each number on the way to a quantised result: `a` and `b` are the
// bounds of a clip, or factor and addend of a linear function; rounding goes to the even number
// from halves.
enum class StepKind { kClip, kRound, kLinear, kAddTensor };

struct Step {
  StepKind kind;
  float a = 0;
  float b = 0;
};

// Goes through what a kind of operator is described by beside its tensors: to read it from a
// document, or to write it down. The names are those of documents.
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

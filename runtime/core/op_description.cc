#include "runtime/core/op_description.h"

#include <sstream>

#include "runtime/core/shapes.h"

namespace tvm_interop {
namespace {

// A visitor of fields that writes each field into a stream of text.
class Written : public Fields {
 public:
  explicit Written(std::ostream* text) : text_(*text) {}
  void Visit(const char* /*name*/, bool* value) override { text_ << ' ' << *value; }
  void Visit(const char* /*name*/, int64_t* value) override { text_ << ' ' << *value; }
  void Visit(const char* /*name*/, float* value) override { text_ << ' ' << *value; }
  void Visit(const char* /*name*/, std::vector<int64_t>* value) override {
    text_ << ' ' << Text(*value);
  }
  void Visit(const char* /*name*/, Activation* value) override {
    text_ << ' ' << static_cast<int>(*value);
  }
  void Visit(const char* /*name*/, std::vector<Step>* value) override {
    for (const Step& step : *value) {
      text_ << " step " << static_cast<int>(step.kind) << ' ' << step.a << ' ' << step.b;
    }
  }

 private:
  std::ostream& text_;
};

std::string WhyWrongCut(const OpDescription& op) {
  if (op.cut.size() != 4) return "needs four numbers for its cut";
  const int64_t argument = op.cut[0], axis = op.cut[1], begin = op.cut[2], size = op.cut[3];
  constexpr int64_t kRows = 2;  // The only axis along which a blocked image can be cut.
  if (!op.MayCut(argument, axis) || (axis != kRows && op.layouts[argument] != Layout::kPlain)) {
    return "cannot cut argument " + std::to_string(argument) + " along axis " +
           std::to_string(axis);
  }
  const int64_t taken = op.shapes[argument][axis];
  if (begin < 0 || taken > size || begin > size - taken) {
    return "cuts " + std::to_string(taken) + " elements, beginning with element " +
           std::to_string(begin) + ", from an axis of " + std::to_string(size);
  }
  return "";
}

}  // namespace

const Ending& OpDescription::ends() const {
  static const Ending nothing;
  return nothing;
}

std::map<std::string, MakesOpDescription>& Kinds() {
  static auto* const kinds = new std::map<std::string, MakesOpDescription>;
  return *kinds;
}

std::unique_ptr<OpDescription> NewOpDescription(const std::string& kind) {
  const auto found = Kinds().find(kind);
  if (found == Kinds().end()) throw UnknownKind(kind);
  std::unique_ptr<OpDescription> op = found->second();
  op->op = kind;
  return op;
}

std::string WhyMalformed(const OpDescription& op) {
  const size_t args = op.NumArguments();
  if (op.shapes.size() != args || op.layouts.size() != args) {
    return "`" + op.op + "` takes " + std::to_string(args) + " tensors, output included, not " +
           std::to_string(op.shapes.size());
  }
  if (!op.stored.empty() && op.stored.size() != args) {
    return "`" + op.op + "` has " + std::to_string(args) + " tensors, and types of " +
           std::to_string(op.stored.size());
  }
  for (size_t i = 0; i < args; ++i) {
    for (int64_t dim : op.shapes[i]) {
      if (dim < 1) return "`" + op.op + "` has an empty tensor";
    }
    if (op.layouts[i] != Layout::kPlain && op.shapes[i].size() != 4) {
      return "`" + op.op + "` has a blocked tensor that is not an image";
    }
  }
  const Ending& ending = op.ends();
  if (ending.has_sum && op.shapes[args - 2] != op.shapes.back()) {
    return "`" + op.op + "` adds a tensor of another shape than its output";
  }
  if (ending.activation == Activation::kClip && !(ending.clip_low <= ending.clip_high)) {
    return "`" + op.op + "` clips to an empty range";
  }
  std::string why = op.WhyWrong();
  if (why.empty() && !op.cut.empty()) why = WhyWrongCut(op);
  return why.empty() ? "" : "`" + op.op + "` " + why;
}

std::string Describe(const OpDescription& op) {
  std::ostringstream text;
  text << std::hexfloat << op.op;
  for (const auto& shape : op.shapes) text << ' ' << Text(shape);
  for (Layout layout : op.layouts) text << ' ' << static_cast<int>(layout);
  text << ' ' << static_cast<int>(op.dtype) << " stored";
  for (DataType type : op.stored) text << ' ' << static_cast<int>(type);
  text << ' ' << Text(op.cut);
  Written written(&text);
  const_cast<OpDescription&>(op).VisitFields(&written);  // `Written` only reads the fields.
  return text.str();
}

}  // namespace tvm_interop

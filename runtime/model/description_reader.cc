#include "runtime/model/description_reader.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "runtime/core/names.h"
#include "runtime/model/plan.h"

namespace tvm_interop {
namespace {

const Json& Defaults() {
  // The fields that descriptions of all kinds have, and their default values. If a kind does not
  // use a field, the field must hold its default (see `_DEFAULTS` in
  // `tvm_interop/program/library_op.py`).
  static const Json defaults = Json::parse(R"({
    "window": [], "strides": [], "padding": [], "dilation": [], "groups": 1, "has_bias": false,
    "has_sum": false, "activation": "none", "clip_low": 0.0, "clip_high": 0.0,
    "counts_padding": false, "lrn_size": 0, "lrn_alpha": 0.0, "lrn_beta": 0.0, "lrn_bias": 0.0,
    "epsilon": 0.0, "dtype": "float32", "allow_tf32": false, "stored": [], "data_zero": 0,
    "weight_zero": 0, "cut": [], "steps": []})");
  return defaults;
}

// Whether two values are equal in Python, where `False` equals 0 and `True` equals 1.
bool AreEqual(const Json& one, const Json& other) {
  const auto number = [](const Json& json) {
    return json.is_boolean() ? Json(json.get<bool>() ? 1 : 0) : json;
  };
  return number(one) == number(other);
}

// The fields that descriptions of older versions lack. Their values are the defaults.
bool IsLater(const std::string& field) {
  static const std::set<std::string> later{"epsilon",   "dtype",       "allow_tf32", "stored",
                                           "data_zero", "weight_zero", "cut",        "steps"};
  return later.count(field) > 0;
}

template <typename Value>
Value Choice(const JsonValue& value, const std::map<std::string, Value>& choices) {
  const auto found = choices.find(value.Text());
  if (found == choices.end()) value.Refuse("`" + value.Text() + "` is not known");
  return found->second;
}

// Returns the integer in a field. If `is_used`, the integer must be within bounds.
int64_t BoundedInt(const JsonValue& value, bool is_used, int64_t least = 0) {
  const int64_t number = value.Int();
  if (!is_used) return number;
  if (number < least || number > kMaxParameter) {
    value.Refuse(std::to_string(number) + " is out of bounds");
  }
  return number;
}

float BoundedFloat(const JsonValue& value, bool is_used) {
  const double number = value.Number();
  if (!is_used) return 0;  // The number may be too large for a float.
  if (!(std::abs(number) <= double{std::numeric_limits<float>::max()})) {
    value.Refuse(std::to_string(number) + " is out of bounds");
  }
  return static_cast<float>(number);
}

// A visitor of fields that reads each field from a JSON object.
class Read : public Fields {
 public:
  Read(JsonObject* from, bool is_used) : from_(*from), is_used_(is_used) {}

  void Visit(const char* name, bool* to) override {
    if (const auto value = At(name)) *to = value->Bool();
  }
  void Visit(const char* name, int64_t* to) override {
    const std::string field = name;
    const bool is_zero_point = field == "data_zero" || field == "weight_zero";
    if (const auto value = At(name)) *to = BoundedInt(*value, is_used_, is_zero_point ? -128 : 0);
  }
  void Visit(const char* name, float* to) override {
    if (const auto value = At(name)) *to = BoundedFloat(*value, is_used_);
  }
  void Visit(const char* name, std::vector<int64_t>* to) override {
    const auto value = At(name);
    if (!value.has_value()) return;
    to->clear();
    for (const JsonValue& element : value->List()) to->push_back(BoundedInt(element, is_used_));
  }
  void Visit(const char* name, Activation* to) override {
    if (const auto value = At(name)) *to = Choice(*value, Activations());
  }
  void Visit(const char* name, std::vector<Step>* to) override {
    const auto value = At(name);
    if (!value.has_value()) return;
    to->clear();
    for (const JsonValue& element : value->List()) {
      const std::vector<JsonValue> step = element.List();
      if (step.size() != 3) element.Refuse("a step has a kind and two numbers");
      to->push_back({Choice(step[0], StepKinds()), BoundedFloat(step[1], is_used_),
                     BoundedFloat(step[2], is_used_)});
    }
  }

 private:
  std::optional<JsonValue> At(const char* name) {
    if (IsLater(name)) return from_.Find(name);
    return from_.At(name);
  }

  JsonObject& from_;
  const bool is_used_;
};

const std::map<std::string, DataType>& Types() {
  static const std::map<std::string, DataType> types{{"float32", DataType::kFloat32},
                                                     {"float16", DataType::kFloat16},
                                                     {"bfloat16", DataType::kBfloat16},
                                                     {"int8", DataType::kInt8},
                                                     {"uint8", DataType::kUint8}};
  return types;
}

void ReadTensors(JsonObject* object, bool is_used, OpDescription* to,
                 std::vector<std::string>* types) {
  for (const JsonValue& shape : object->At("shapes").List()) {
    to->shapes.push_back(shape.Ints());
    bool in_bounds = to->shapes.back().size() <= kMaxRank;
    for (int64_t dim : to->shapes.back()) in_bounds = in_bounds && 0 <= dim && dim <= kMaxDimension;
    if (is_used && !in_bounds) shape.Refuse("the shape is out of bounds");
  }
  const JsonValue given_layouts = object->At("layouts");
  for (const JsonValue& layout : given_layouts.List()) {
    to->layouts.push_back(Choice(layout, Layouts()));
  }
  if (is_used && to->layouts.size() != to->shapes.size()) {
    given_layouts.Refuse("there are " + std::to_string(to->shapes.size()) + " shapes and " +
                         std::to_string(to->layouts.size()) + " layouts");
  }
  std::string dtype = "float32";
  if (const auto given = object->Find("dtype")) {
    to->dtype = Choice(*given, Types());
    dtype = given->Text();
    if (dtype == "uint8") given->Refuse("`uint8` is not known");
  }
  if (const auto stored = object->Find("stored")) {
    for (const JsonValue& type : stored->List()) {
      to->stored.push_back(Choice(type, Types()));
      types->push_back(type.Text());
    }
  }
  if (types->empty()) types->assign(to->shapes.size(), dtype);
}

void ReadCut(JsonObject* object, bool is_used, OpDescription* to) {
  const auto cut = object->Find("cut");
  if (!cut.has_value()) return;
  for (const JsonValue& number : cut->List()) to->cut.push_back(BoundedInt(number, is_used));
  if (to->cut.empty() || !is_used) return;
  const auto is_below = [](int64_t number, size_t end) {
    return number < static_cast<int64_t>(end);
  };
  const bool is_one = to->cut.size() == 4 && is_below(to->cut[0], to->shapes.size()) &&
                      is_below(to->cut[1], to->shapes[to->cut[0]].size());
  if (!is_one || to->cut[2] > to->cut[3] - to->shapes[to->cut[0]][to->cut[1]]) {
    cut->Refuse("the shapes do not allow this cut");
  }
}

}  // namespace

std::unique_ptr<OpDescription> ReadDescription(const JsonValue& value, bool is_used,
                                               std::vector<std::string>* types) {
  JsonObject object(value);
  const JsonValue kind = object.At("op");
  if (Kinds().count(kind.Text()) == 0) {
    kind.Refuse("`" + kind.Text() + "` is not a kind of operator that this version knows");
  }
  std::unique_ptr<OpDescription> description = NewOpDescription(kind.Text());
  ReadTensors(&object, is_used, description.get(), types);
  ReadCut(&object, is_used, description.get());
  Read fields(&object, is_used);
  description->VisitFields(&fields);
  for (const std::string& name : object.Others()) {
    const auto known = Defaults().find(name);
    if (known == Defaults().end() || !AreEqual(*known, value.json()[name])) {
      value.Refuse("`" + kind.Text() + "` takes no such field `" + name + "`");
    }
  }
  return description;
}

}  // namespace tvm_interop

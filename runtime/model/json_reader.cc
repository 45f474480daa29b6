#include "runtime/model/json_reader.h"

#include <limits>

namespace tvm_interop {
namespace {

[[noreturn]] void RefuseText(const std::string& name, const std::string& why) {
  throw ArtifactError("`" + name + "` cannot be read by this version: " + why);
}

}  // namespace

Json ParseJson(const std::string& name, const std::string& text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    RefuseText(name, error.what());
  }
}

void JsonValue::Refuse(const std::string& why) const { RefuseText(path_, why); }

std::string JsonValue::Text() const {
  if (!json_.is_string()) Refuse("a text is expected");
  return json_.get<std::string>();
}

bool JsonValue::Bool() const {
  if (!json_.is_boolean()) Refuse("`true` or `false` is expected");
  return json_.get<bool>();
}

int64_t JsonValue::Int() const {
  if (!json_.is_number_integer()) Refuse("an integer is expected");
  if (json_.is_number_unsigned() &&
      json_.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    Refuse("the integer is too large");
  }
  return json_.get<int64_t>();
}

double JsonValue::Number() const {
  if (!json_.is_number()) Refuse("a number is expected");
  return json_.get<double>();
}

std::optional<int64_t> JsonValue::IntOrNull() const {
  return is_null() ? std::nullopt : std::optional<int64_t>(Int());
}

std::vector<int64_t> JsonValue::Ints() const {
  std::vector<int64_t> numbers;
  for (const JsonValue& element : List()) numbers.push_back(element.Int());
  return numbers;
}

std::vector<JsonValue> JsonValue::List() const {
  if (!json_.is_array()) Refuse("a list is expected");
  std::vector<JsonValue> elements;
  elements.reserve(json_.size());
  for (size_t i = 0; i < json_.size(); ++i) {
    elements.emplace_back(json_[i], path_ + "[" + std::to_string(i) + "]");
  }
  return elements;
}

JsonObject::JsonObject(const JsonValue& value) : value_(value) {
  if (!value.json().is_object()) value.Refuse("an object is expected");
}

JsonValue JsonObject::At(const char* name) {
  std::optional<JsonValue> found = Find(name);
  if (!found.has_value()) value_.Refuse("the field `" + std::string(name) + "` is missing");
  return *found;
}

std::optional<JsonValue> JsonObject::Find(const char* name) {
  known_.insert(name);
  const auto found = value_.json().find(name);
  if (found == value_.json().end()) return std::nullopt;
  return JsonValue(*found, value_.path() + "." + name);
}

std::vector<std::string> JsonObject::Others() const {
  std::vector<std::string> others;
  for (const auto& item : value_.json().items()) {
    if (known_.count(item.key()) == 0) others.push_back(item.key());
  }
  return others;
}

void JsonObject::RefuseOthers() const {
  for (const std::string& name : Others()) value_.Refuse("there is no field `" + name + "`");
}

}  // namespace tvm_interop

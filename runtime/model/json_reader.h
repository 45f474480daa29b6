#ifndef RUNTIME_MODEL_JSON_READER_H_
#define RUNTIME_MODEL_JSON_READER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/error.h"

namespace tvm_interop {

using Json = nlohmann::json;

// Parses a JSON text. Error messages call the text `name`. Throws ArtifactError.
Json ParseJson(const std::string& name, const std::string& text);

// A value in a JSON text, with the path that leads to it. All functions throw ArtifactError, with
// the path in the text, if the value does not have the type that the function reads.
class JsonValue {
 public:
  JsonValue(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  const Json& json() const { return json_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return json_.is_null(); }

  std::string Text() const;
  bool Bool() const;
  int64_t Int() const;
  double Number() const;
  std::optional<int64_t> IntOrNull() const;
  std::vector<int64_t> Ints() const;
  // The elements of a list.
  std::vector<JsonValue> List() const;
  // Throws the error for a value that cannot be read, and says why.
  [[noreturn]] void Refuse(const std::string& why) const;

 private:
  const Json& json_;
  std::string path_;
};

// An object in which all fields must be known. Call `At` or `Find` for each known field, and then
// `RefuseOthers`.
class JsonObject {
 public:
  explicit JsonObject(const JsonValue& value);

  // Returns the field `name`. Throws ArtifactError if it is missing.
  JsonValue At(const char* name);
  // Returns the field `name`, or nothing if it is missing.
  std::optional<JsonValue> Find(const char* name);
  // Throws ArtifactError if there is a field that nobody asked for.
  void RefuseOthers() const;
  // The names of the fields that nobody asked for.
  std::vector<std::string> Others() const;

 private:
  JsonValue value_;
  std::set<std::string> known_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_JSON_READER_H_

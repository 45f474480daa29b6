#include "runtime/ffi/op_description.h"

#include <tvm/ffi/container/array.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/names.h"

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;

// A visitor of fields that reads each field from the map of a `Description`.
class Read : public Fields {
 public:
  explicit Read(const Description& from) : from_(from) {}
  void Visit(const char* name, bool* value) override { *value = At(name).cast<bool>(); }
  void Visit(const char* name, int64_t* value) override { *value = At(name).cast<int64_t>(); }
  void Visit(const char* name, float* value) override {
    *value = static_cast<float>(At(name).cast<double>());
  }
  void Visit(const char* name, std::vector<int64_t>* value) override {
    const auto array = At(name).cast<ffi::Array<int64_t>>();
    value->assign(array.begin(), array.end());
  }
  void Visit(const char* name, Activation* value) override {
    *value = Activations().at(At(name).cast<std::string>());
  }
  void Visit(const char* name, std::vector<Step>* value) override {
    value->clear();
    for (const auto& step : At(name).cast<ffi::Array<ffi::Array<ffi::Any>>>()) {
      value->push_back({StepKinds().at(step[0].cast<std::string>()),
                        static_cast<float>(step[1].cast<double>()),
                        static_cast<float>(step[2].cast<double>())});
    }
  }

 private:
  ffi::Any At(const char* name) const { return from_.at(name); }

  const Description& from_;
};

}  // namespace

std::unique_ptr<OpDescription> ToOpDescription(const Description& from) {
  static const std::map<std::string, DataType> types{
      {"float32", DataType::kFloat32},   {"float16", DataType::kFloat16},
      {"bfloat16", DataType::kBfloat16}, {"int8", DataType::kInt8},
      {"uint8", DataType::kUint8},       {"int32", DataType::kInt32}};
  std::unique_ptr<OpDescription> to = NewOpDescription(from.at("op").cast<std::string>());
  for (const auto& shape : from.at("shapes").cast<ffi::Array<ffi::Array<int64_t>>>()) {
    to->shapes.emplace_back(shape.begin(), shape.end());
  }
  for (const auto& layout : from.at("layouts").cast<ffi::Array<ffi::String>>()) {
    to->layouts.push_back(Layouts().at(layout));
  }
  to->dtype = types.at(from.at("dtype").cast<std::string>());
  // Descriptions from older versions have no `stored`. All of their tensors have the type `dtype`.
  if (from.count("stored") > 0) {
    for (const auto& type : from.at("stored").cast<ffi::Array<ffi::String>>()) {
      to->stored.push_back(types.at(type));
    }
  }
  Read fields(from);
  fields.Visit("cut", &to->cut);
  to->VisitFields(&fields);
  return to;
}

}  // namespace tvm_interop

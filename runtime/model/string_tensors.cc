#include "runtime/model/string_tensors.h"

#include <set>

#include "runtime/model/counted.h"
#include "runtime/model/error.h"

namespace tvm_interop {
namespace {

[[noreturn]] void Refuse(const char* kind, const StringTensor& tensor, const std::string& what) {
  throw ArtifactError(std::string(kind) + " " + std::to_string(tensor.position) +
                      ", which is strings, " + what);
}

void CheckTexts(const std::vector<StringTensor>& tensors, const char* kind) {
  std::set<int64_t> seen;
  for (const StringTensor& each : tensors) {
    if (!seen.insert(each.position).second) Refuse(kind, each, "is listed twice");
    if (each.strings.empty()) Refuse(kind, each, "has no strings");
    for (const std::string& text : each.strings) {
      if (text.find('\0') != std::string::npos) {
        Refuse(kind, each, "has a string with a zero byte");
      }
    }
  }
}

// Checks the tensors against the first `count` of the plan's inputs or outputs, `values`.
void CheckPlaces(const std::vector<StringTensor>& tensors, const char* kind, const Plan& plan,
                 const std::vector<int64_t>& values, size_t count) {
  for (const StringTensor& each : tensors) {
    if (static_cast<size_t>(each.position) >= count) {
      Refuse(kind, each, "is not among the model's " + std::to_string(count));
    }
    const std::string& dtype = plan.values[values[each.position]].dtype;
    if (dtype != "int64") {
      Refuse(kind, each, "is " + dtype + " in the plan, and the positions of strings are int64");
    }
  }
}

}  // namespace

void CheckStrings(const Manifest& manifest, const std::vector<const Plan*>& plans) {
  CheckTexts(manifest.string_inputs, "input");
  CheckTexts(manifest.string_outputs, "output");
  for (const Plan* plan : plans) {
    CheckPlaces(manifest.string_inputs, "input", *plan, plan->inputs, plan->inputs.size());
    CheckPlaces(manifest.string_outputs, "output", *plan, plan->outputs,
                NumModelOutputs(manifest.counted, *plan));
  }
}

const std::vector<std::string>* StringsOf(const std::vector<StringTensor>& tensors, size_t index) {
  for (const StringTensor& each : tensors) {
    if (static_cast<size_t>(each.position) == index) return &each.strings;
  }
  return nullptr;
}

}  // namespace tvm_interop

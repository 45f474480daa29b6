#include "runtime/model/string_outputs.h"

#include <set>

#include "runtime/model/counted.h"
#include "runtime/model/error.h"

namespace tvm_interop {

void CheckStringOutputs(const Manifest& manifest, const std::vector<const Plan*>& plans) {
  std::set<int64_t> outputs;
  for (const StringOutput& each : manifest.string_outputs) {
    const auto refuse = [&](const std::string& what) {
      throw ArtifactError("output " + std::to_string(each.output) + ", which is strings, " + what);
    };
    if (!outputs.insert(each.output).second) refuse("is listed twice");
    if (each.strings.empty()) refuse("has no strings");
    for (const std::string& text : each.strings) {
      if (text.find('\0') != std::string::npos) refuse("has a string with a zero byte");
    }
    for (const Plan* plan : plans) {
      const size_t num_outputs = NumModelOutputs(manifest.counted, *plan);
      if (static_cast<size_t>(each.output) >= num_outputs) {
        refuse("is not among the model's " + std::to_string(num_outputs));
      }
      const PlannedValue& value = plan->values[plan->outputs[each.output]];
      if (value.dtype != "int64") {
        refuse("is " + value.dtype + " in the plan, and the positions of strings are int64");
      }
    }
  }
}

const std::vector<std::string>* StringsOf(const std::vector<StringOutput>& outputs, size_t index) {
  for (const StringOutput& each : outputs) {
    if (static_cast<size_t>(each.output) == index) return &each.strings;
  }
  return nullptr;
}

}  // namespace tvm_interop

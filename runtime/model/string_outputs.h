#ifndef RUNTIME_MODEL_STRING_OUTPUTS_H_
#define RUNTIME_MODEL_STRING_OUTPUTS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/model/manifest.h"
#include "runtime/model/plan.h"

namespace tvm_interop {

// Checks that `manifest.string_outputs` names outputs of the model, each at most once, which are
// int64 in the plans of all shapes, and that each has strings without zero bytes. Throws
// ArtifactError.
void CheckStringOutputs(const Manifest& manifest, const std::vector<const Plan*>& plans);

// Returns the strings of the model's output number `index`; null if the output is not strings.
const std::vector<std::string>* StringsOf(const std::vector<StringOutput>& outputs, size_t index);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_STRING_OUTPUTS_H_

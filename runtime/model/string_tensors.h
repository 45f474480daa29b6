#ifndef RUNTIME_MODEL_STRING_TENSORS_H_
#define RUNTIME_MODEL_STRING_TENSORS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/model/manifest.h"
#include "runtime/model/plan.h"

namespace tvm_interop {

// Checks the inputs and outputs of the model that are strings. The manifest names each at most
// once, it is int64 in the plans of all shapes, and it has strings without zero bytes. Throws
// ArtifactError.
void CheckStrings(const Manifest& manifest, const std::vector<const Plan*>& plans);

// Returns the strings of the model's input or output number `index`; null if it is not strings.
const std::vector<std::string>* StringsOf(const std::vector<StringTensor>& tensors, size_t index);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_STRING_TENSORS_H_

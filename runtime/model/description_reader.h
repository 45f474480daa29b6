#ifndef RUNTIME_MODEL_DESCRIPTION_READER_H_
#define RUNTIME_MODEL_DESCRIPTION_READER_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/model/json_reader.h"

namespace tvm_interop {

// Reads the description of a library's operator, as Python's `LibraryOp.fields` gives it. Writes
// the stored type of each argument into `types`. Throws ArtifactError if the description has
// another form. If a library runs the operator (`is_used`), it also throws if a number is out of
// bounds. TVM's operators have descriptions too, but these are not used.
std::unique_ptr<OpDescription> ReadDescription(const JsonValue& value, bool is_used,
                                               std::vector<std::string>* types);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_DESCRIPTION_READER_H_

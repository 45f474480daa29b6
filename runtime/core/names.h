#ifndef RUNTIME_CORE_NAMES_H_
#define RUNTIME_CORE_NAMES_H_

#include <map>
#include <string>

#include "runtime/core/fields.h"
#include "runtime/core/op_description.h"

namespace tvm_interop {

// The names that descriptions of operators have in artifacts and in Python.
const std::map<std::string, Activation>& Activations();
const std::map<std::string, StepKind>& StepKinds();
const std::map<std::string, Layout>& Layouts();

const std::string& NameOf(Layout layout);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_NAMES_H_

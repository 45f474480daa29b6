#ifndef RUNTIME_FFI_OP_DESCRIPTION_H_
#define RUNTIME_FFI_OP_DESCRIPTION_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include <memory>
#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// The fields of an operator by name, as Python's `LibraryOp.fields` returns them.
using Description = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

// Makes an operator from its fields. Throws UnknownKind if the kind is unknown. Throws
// std::out_of_range if a field is missing or its value is an unknown name.
std::unique_ptr<OpDescription> ToOpDescription(const Description& from);

// Makes an operator from its fields, and returns the result of `why` for it. If the operator's kind
// is unknown, returns a text that says so.
template <typename Why>
std::string WhyUnsupportedBy(const Description& description, const Why& why) {
  try {
    return why(*ToOpDescription(description));
  } catch (const UnknownKind& unknown) {
    return unknown.what();
  }
}

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_OP_DESCRIPTION_H_

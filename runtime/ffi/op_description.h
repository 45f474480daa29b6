#ifndef RUNTIME_FFI_OP_DESCRIPTION_H_
#define RUNTIME_FFI_OP_DESCRIPTION_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include <memory>
#include <string>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// What Python's `LibraryOp.fields` gives.
using Description = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

// Throws UnknownKind, and std::out_of_range where a field is missing or has an unknown name for a
// value.
std::unique_ptr<OpDescription> ToOpDescription(const Description& from);

// What `why_unsupported` says of an operator; of one whose kind is unknown, that it is.
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

#ifndef RUNTIME_OP_DESCRIPTION_BINDINGS_H_
#define RUNTIME_OP_DESCRIPTION_BINDINGS_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include "runtime/op_description.h"

namespace tvm_interop {

// What Python's `LibraryOp.fields` gives.
using Description = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

OpDescription ToOpDescription(const Description& from);

}  // namespace tvm_interop

#endif  // RUNTIME_OP_DESCRIPTION_BINDINGS_H_

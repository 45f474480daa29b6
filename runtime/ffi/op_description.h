#ifndef RUNTIME_FFI_OP_DESCRIPTION_H_
#define RUNTIME_FFI_OP_DESCRIPTION_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// What Python's `LibraryOp.fields` gives.
using Description = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

OpDescription ToOpDescription(const Description& from);

}  // namespace tvm_interop

#endif  // RUNTIME_FFI_OP_DESCRIPTION_H_

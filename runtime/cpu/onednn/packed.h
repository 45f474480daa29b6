#ifndef RUNTIME_CPU_ONEDNN_PACKED_H_
#define RUNTIME_CPU_ONEDNN_PACKED_H_

#include "runtime/core/owned.h"
#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/shared_constants.h"

namespace tvm_interop {
namespace onednn {

// The present layout of a constant in memory, and the layout in which a kernel wants it. `api` must
// outlive the object.
struct Reordered {
  const Api* api;
  Owned<MemoryDesc> given;
  Owned<MemoryDesc> wanted;

  bool operator==(const Reordered& other) const {
    return api->memory_desc_equal(given.get(), other.given.get()) != 0 &&
           api->memory_desc_equal(wanted.get(), other.wanted.get()) != 0;
  }
};

using PackedConstants = SharedConstants<Reordered>;

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_PACKED_H_

#ifndef RUNTIME_CPU_ONEDNN_PACKED_H_
#define RUNTIME_CPU_ONEDNN_PACKED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/core/owned.h"
#include "runtime/cpu/onednn/api.h"

namespace tvm_interop {
namespace onednn {

// Aligned memory, filled with zeros. Throws std::bad_alloc.
std::shared_ptr<void> AllocateZeros(size_t bytes);

// Constants as kernels want them, packed once for all kernels that want the same of the same
// tensor: instances of a model, and the model at other batch sizes. Packed memory goes with the
// last kernel that holds it.
//
// The same tensor is one at the same address that holds the same bytes (by a hash of 64 bits):
// whoever changes a constant in place and binds it anew gets it packed anew.
class PackedConstants {
 public:
  // `constant`, which is `bytes` long and of the layout `given`, in the layout `wanted`; `pack`
  // fills the memory, which is zero, if nobody holds such memory yet. Kernels that are made at once
  // wait for each other.
  std::shared_ptr<void> Get(const Api& api, const void* constant, size_t bytes,
                            const MemoryDescObject* given, const MemoryDescObject* wanted,
                            const std::function<void(void*)>& pack);

  // The one of this process.
  static PackedConstants& Global();

 private:
  struct Entry {
    const void* constant;
    uint64_t hash;
    Owned<MemoryDesc> given;
    Owned<MemoryDesc> wanted;
    std::weak_ptr<void> memory;
  };

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_PACKED_H_

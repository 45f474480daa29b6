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

// Hashes a block of memory. The four lanes do not depend on each other, so hashing is about as fast
// as reading the memory. The constants come from splitmix64.
uint64_t HashOf(const void* data, size_t bytes);

// Constants in the layouts that kernels want. A constant is packed once for all kernels that want
// the same tensor in the same layout. Such kernels belong, for example, to several instances of a
// model, or to the model at several batch sizes. The packed memory is freed with the last kernel
// that holds it.
//
// Two tensors count as the same if they have the same address and the same hash. The hash is
// `HashOf` the bytes. So a constant that is changed in place and bound again is packed again. It is
// 0 for tensors that nobody can change: reading all of them would take longer than packing them.
class PackedConstants {
 public:
  // Returns `constant`, which has the hash `hash` and the layout `given`, in the layout `wanted`.
  // If no kernel holds such memory yet, `pack` fills new memory, which is zero at first. Several
  // threads may call this function at the same time.
  std::shared_ptr<void> Get(const Api& api, const void* constant, uint64_t hash,
                            const MemoryDescObject* given, const MemoryDescObject* wanted,
                            const std::function<void(void*)>& pack);

  // The only object of this class in the process.
  static PackedConstants& Global();

 private:
  // Returns the packed memory that a kernel holds, or null. The caller must hold `mutex_`.
  std::shared_ptr<void> Find(const Api& api, const void* constant, uint64_t hash,
                             const MemoryDescObject* given, const MemoryDescObject* wanted);

  struct Entry {
    const void* constant;
    uint64_t hash;
    Owned<MemoryDesc> given;
    Owned<MemoryDesc> wanted;
    std::weak_ptr<void> memory;
  };

  std::mutex mutex_;  // Guards `entries_`.
  std::vector<Entry> entries_;
};

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_PACKED_H_

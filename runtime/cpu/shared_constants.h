#ifndef RUNTIME_CPU_SHARED_CONSTANTS_H_
#define RUNTIME_CPU_SHARED_CONSTANTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/core/large_pages.h"

namespace tvm_interop {

// Hashes a block of memory. The hash is computed in four lanes that do not depend on each other, so
// hashing is about as fast as reading the memory. The constants come from splitmix64.
uint64_t HashOf(const void* data, size_t bytes);

// Constants in the forms that kernels want. A constant is packed once for all kernels that want the
// same tensor in the same form. Such kernels belong, for example, to several instances of a model,
// or to the model at several batch sizes. The packed memory is freed with the last kernel that
// holds it.
//
// Two tensors count as the same if they have the same address and the same hash. The hash is
// `HashOf` the tensor's bytes. So a constant that is changed in place and bound again is packed
// again. For a tensor that nobody can change, the address is enough, so its hash is set to 0.
// Computing the hashes of all such tensors would take longer than packing them.
//
// `Form` says how a constant lies in memory and how it is packed. Forms are compared with `==`.
template <typename Form>
class SharedConstants {
 public:
  // Returns the tensor `constant`, which has the hash `hash`, packed in the form `form`. The packed
  // tensor takes `bytes` bytes. If no kernel holds this packed tensor yet, allocates memory, which
  // is zero at first, and lets `pack` fill it. Several threads may call this function at the same
  // time.
  template <typename Pack>
  std::shared_ptr<void> Get(const void* constant, uint64_t hash, Form form, size_t bytes,
                            const Pack& pack) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::shared_ptr<void> known = Find(constant, hash, form);
      if (known != nullptr) return known;
    }
    // The mutex is not held here, so that several threads can pack at once.
    std::shared_ptr<void> memory = ZerosInLargePages(bytes);
    pack(memory.get());
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<void> other = Find(constant, hash, form);
    if (other != nullptr) return other;  // Another thread has packed the same constant meanwhile.
    entries_.push_back({constant, hash, std::move(form), memory});
    return memory;
  }

  // The only object of this class in the process. It is never destroyed, because kernels of other
  // static objects may outlive it.
  static SharedConstants& Global() {
    static auto* const constants = new SharedConstants;
    return *constants;
  }

 private:
  struct Entry {
    const void* constant;
    uint64_t hash;
    Form form;
    std::weak_ptr<void> memory;
  };

  // Returns the packed memory of `constant` in the form `form` if a kernel holds this memory, or
  // null. The caller must hold `mutex_`.
  std::shared_ptr<void> Find(const void* constant, uint64_t hash, const Form& form) {
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                  [](const Entry& entry) { return entry.memory.expired(); }),
                   entries_.end());
    for (const Entry& entry : entries_) {
      if (entry.constant != constant || entry.hash != hash || !(entry.form == form)) continue;
      std::shared_ptr<void> memory = entry.memory.lock();
      if (memory != nullptr) return memory;
    }
    return nullptr;
  }

  std::mutex mutex_;  // Guards `entries_`.
  std::vector<Entry> entries_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_SHARED_CONSTANTS_H_

#include "runtime/cpu/onednn/packed.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/core/aligned_memory.h"

namespace tvm_interop {
namespace onednn {
namespace {

Owned<MemoryDesc> CopyOf(const Api& api, const MemoryDescObject* desc) {
  MemoryDesc copy = nullptr;
  if (api.memory_desc_clone(&copy, desc) != kSuccess) {
    throw std::runtime_error("oneDNN: a descriptor cannot be copied");
  }
  return {copy, api.memory_desc_destroy};
}

}  // namespace

uint64_t HashOf(const void* data, size_t bytes) {
  constexpr uint64_t kMultiply = 0xbf58476d1ce4e5b9;
  uint64_t lanes[4] = {1, 2, 3, 4};
  const char* begin = static_cast<const char*>(data);
  while (bytes > 0) {
    uint64_t words[4] = {};
    const size_t taken = std::min(bytes, sizeof(words));
    std::memcpy(words, begin, taken);
    for (int i = 0; i < 4; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * kMultiply;
      lanes[i] ^= lanes[i] >> 29;
    }
    begin += taken;
    bytes -= taken;
  }
  uint64_t hash = 0;
  for (uint64_t lane : lanes) hash = (hash ^ lane ^ (hash >> 31)) * 0x94d049bb133111eb;
  return hash;
}

std::shared_ptr<void> PackedConstants::Get(const Api& api, const void* constant, uint64_t hash,
                                           const MemoryDescObject* given,
                                           const MemoryDescObject* wanted,
                                           const std::function<void(void*)>& pack) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<void> known = Find(api, constant, hash, given, wanted);
    if (known != nullptr) return known;
  }
  // The mutex is free here, so that several threads can pack at once.
  std::shared_ptr<void> memory = AlignedZeros(api.memory_desc_get_size(wanted));
  pack(memory.get());
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<void> other = Find(api, constant, hash, given, wanted);
  if (other != nullptr) return other;  // Another thread has packed the same constant meanwhile.
  entries_.push_back({constant, hash, CopyOf(api, given), CopyOf(api, wanted), memory});
  return memory;
}

std::shared_ptr<void> PackedConstants::Find(const Api& api, const void* constant, uint64_t hash,
                                            const MemoryDescObject* given,
                                            const MemoryDescObject* wanted) {
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const Entry& entry) { return entry.memory.expired(); }),
                 entries_.end());
  for (const Entry& entry : entries_) {
    if (entry.constant != constant || entry.hash != hash) continue;
    if (api.memory_desc_equal(entry.given.get(), given) == 0) continue;
    if (api.memory_desc_equal(entry.wanted.get(), wanted) == 0) continue;
    std::shared_ptr<void> memory = entry.memory.lock();
    if (memory != nullptr) return memory;
  }
  return nullptr;
}

PackedConstants& PackedConstants::Global() {
  // The object is never destroyed, because kernels of other static objects may outlive it.
  static PackedConstants* const constants = new PackedConstants;
  return *constants;
}

}  // namespace onednn
}  // namespace tvm_interop

#include "runtime/model/shared_weights.h"

#include <iterator>
#include <map>
#include <mutex>

namespace tvm_interop {

std::shared_ptr<const Memory> SharedWeights(const Source& source, uint64_t offset, size_t nbytes,
                                            const std::string& sha256) {
  using Blocks = std::map<std::string, std::weak_ptr<const Memory>>;
  // The mutex and the map are never destroyed, because artifacts of other static objects may
  // outlive them.
  static std::mutex& mutex = *new std::mutex;  // Guards `blocks`.
  static Blocks& blocks = *new Blocks;         // by digest
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto block = blocks.begin(); block != blocks.end();) {
    block = block->second.expired() ? blocks.erase(block) : std::next(block);
  }
  const std::shared_ptr<const Memory> known = blocks[sha256].lock();
  if (known != nullptr && known->IsUnchanged()) return known;
  std::shared_ptr<const Memory> made = source.Map(offset, nbytes);
  blocks[sha256] = made;
  return made;
}

}  // namespace tvm_interop

#include "runtime/cpu/shared_constants.h"

#include <cstring>

namespace tvm_interop {

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

}  // namespace tvm_interop

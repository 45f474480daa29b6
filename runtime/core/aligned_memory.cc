#include "runtime/core/aligned_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tvm_interop {
namespace {

constexpr size_t kAlignment = 64;

size_t Rounded(size_t nbytes) {
  return std::max((nbytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
}

}  // namespace

std::shared_ptr<char> AlignedMemory(size_t nbytes) {
  auto* const memory = static_cast<char*>(std::aligned_alloc(kAlignment, Rounded(nbytes)));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, std::free};
}

std::shared_ptr<char> AlignedZeros(size_t nbytes) {
  std::shared_ptr<char> memory = AlignedMemory(nbytes);
  std::memset(memory.get(), 0, Rounded(nbytes));
  return memory;
}

}  // namespace tvm_interop

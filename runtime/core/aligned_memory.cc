#include "runtime/core/aligned_memory.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
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
  // Large blocks of memory come from the system already cleared, and `calloc` does not clear them
  // again.
  void* const whole = std::calloc(1, Rounded(nbytes) + kAlignment);
  if (whole == nullptr) throw std::bad_alloc();
  void* begin = whole;
  size_t space = Rounded(nbytes) + kAlignment;
  std::align(kAlignment, Rounded(nbytes), begin, space);
  return {static_cast<char*>(begin), [whole](char*) { std::free(whole); }};
}

}  // namespace tvm_interop

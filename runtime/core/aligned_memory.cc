#include "runtime/core/aligned_memory.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "runtime/core/large_pages.h"

namespace tvm_interop {
namespace {

constexpr size_t kAlignment = 64;

// Memory of at least this size is put into large pages. Its last page is then at least half full.
constexpr size_t kLarge = kLargePage + kLargePage / 2;

size_t Rounded(size_t nbytes, size_t to) { return std::max((nbytes + to - 1) / to * to, to); }

}  // namespace

std::shared_ptr<char> AlignedMemory(size_t nbytes) {
  const bool is_large = nbytes >= kLarge;
  const size_t alignment = is_large ? kLargePage : kAlignment;
  const size_t length = Rounded(nbytes, alignment);
  auto* const memory = static_cast<char*>(std::aligned_alloc(alignment, length));
  if (memory == nullptr) throw std::bad_alloc();
  if (is_large) PreferLargePages(memory, length);
  return {memory, std::free};
}

std::shared_ptr<char> AlignedZeros(size_t nbytes) {
  // Use `calloc`: the system provides large blocks of memory already cleared, and `calloc` does not
  // clear them again.
  const size_t length = Rounded(nbytes, kAlignment);
  void* const whole = std::calloc(1, length + kAlignment);
  if (whole == nullptr) throw std::bad_alloc();
  void* begin = whole;
  size_t space = length + kAlignment;
  std::align(kAlignment, length, begin, space);
  return {static_cast<char*>(begin), [whole](char*) { std::free(whole); }};
}

}  // namespace tvm_interop

#ifndef RUNTIME_CORE_LARGE_PAGES_H_
#define RUNTIME_CORE_LARGE_PAGES_H_

#include <cstddef>
#include <memory>

namespace tvm_interop {

// The size of the large pages that a system with 64-bit addresses usually has.
constexpr size_t kLargePage = size_t{2} << 20;

// Asks the system to back this memory by large pages. The processor then translates addresses
// faster, and neighbouring numbers lie side by side in physical memory too. If the system refuses
// or has no large pages, nothing changes.
void PreferLargePages(void* begin, size_t nbytes);

// Returns zeros at an address that is a multiple of 64, in large pages. They are for constants that
// each run reads, such as packed weights. The constants of one thread share pages.
//
// Shared pages are freed when none of their constants is needed any more. So use this function only
// for constants that are needed for about the same time, such as the constants of a model. Throws
// std::bad_alloc.
std::shared_ptr<char> ZerosInLargePages(size_t nbytes);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_LARGE_PAGES_H_

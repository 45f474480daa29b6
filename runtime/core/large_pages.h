#ifndef RUNTIME_CORE_LARGE_PAGES_H_
#define RUNTIME_CORE_LARGE_PAGES_H_

#include <cstddef>
#include <memory>

namespace tvm_interop {

// The size of the large pages that a system with 64-bit addresses usually has.
constexpr size_t kLargePage = size_t{2} << 20;

// Asks the system to back this memory by large pages. The processor then finds addresses faster,
// and neighbouring numbers lie side by side in physical memory too. The system may refuse, or have
// no large pages; then nothing changes.
void PreferLargePages(void* begin, size_t nbytes);

// Returns zeros at an address that is a multiple of 64, for constants that each run reads, such as
// packed weights. They lie in large pages, and constants that one thread asks for share pages.
//
// Pages that several constants share are given back when none of these is needed any more. So only
// constants that are needed about equally long, such as those of a model, should come from here.
// Throws std::bad_alloc.
std::shared_ptr<char> ZerosInLargePages(size_t nbytes);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_LARGE_PAGES_H_

#ifndef RUNTIME_CORE_ALIGNED_MEMORY_H_
#define RUNTIME_CORE_ALIGNED_MEMORY_H_

#include <cstddef>
#include <memory>

namespace tvm_interop {

// Both functions return memory at an address that is a multiple of 64: `AlignedMemory` with any
// contents, `AlignedZeros` with zeros. The address is not null, even if `nbytes` is 0. The memory
// and the zeros extend to the next multiple of 64. Both functions throw std::bad_alloc.
std::shared_ptr<char> AlignedMemory(size_t nbytes);
std::shared_ptr<char> AlignedZeros(size_t nbytes);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_ALIGNED_MEMORY_H_

#ifndef RUNTIME_CPU_PACKED_WEIGHT_H_
#define RUNTIME_CPU_PACKED_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/core/aligned_memory.h"
#include "runtime/cpu/kernel_library.h"
#include "runtime/cpu/shared_constants.h"

namespace tvm_interop {

// A float32 weight in the form that one of this project's own kernels needs. All kernels that need
// the same constant in the same form share it (see `SharedConstants`).
template <typename Form>
class PackedWeight {
 public:
  // Calls `pack` to write the packed form of `given` to `packed_bytes` bytes of memory. They are
  // zero before the first call. `given` is a weight or a part of one, and `given_bytes` is the size
  // of the whole weight.
  template <typename Pack>
  void Update(const KernelArgument& given, size_t given_bytes, Form form, size_t packed_bytes,
              const Pack& pack) {
    const float* const weight = FloatsOf(given);
    if (!given.is_constant) {
      if (memory_ == nullptr) memory_ = AlignedZeros(packed_bytes);
      pack(weight, static_cast<float*>(memory_.get()));
      return;
    }
    const uint64_t hash = given.is_read_only ? 0 : HashOf(weight, given_bytes);
    memory_ = SharedConstants<Form>::Global().Get(
        weight, hash, std::move(form), packed_bytes,
        [&](void* to) { pack(weight, static_cast<float*>(to)); });
  }

  const float* data() const { return static_cast<const float*>(memory_.get()); }

 private:
  std::shared_ptr<void> memory_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_PACKED_WEIGHT_H_

#ifndef RUNTIME_CPU_FENCED_MEMORY_H_
#define RUNTIME_CPU_FENCED_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace tvm_interop {

// Memory for one tensor, with a page on each side that nobody may touch.
//
// Pages are larger than tensors are aligned, so a tensor lies against one fence only: `place` says
// which. Between it and the other one is slack, which holds a pattern that is looked at afterwards.
class FencedMemory {
 public:
  enum class Place { kAfterFence, kBeforeFence };

  // All bytes hold `fill`, but for the slack. Throws std::runtime_error where the system has no
  // such memory.
  FencedMemory(size_t nbytes, size_t alignment, Place place, uint8_t fill);
  ~FencedMemory();
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  void* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  // From now on a write is a fault, too.
  void ForbidWrites();
  // Whether nobody wrote into the slack.
  bool SlackIsIntact() const;
  // Whether `address` lies in it or in its fences.
  bool Encloses(const void* address) const;

 private:
  uint8_t* mapped_;
  size_t mapped_nbytes_;
  uint8_t* data_;
  size_t nbytes_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_FENCED_MEMORY_H_

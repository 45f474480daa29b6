#ifndef RUNTIME_CPU_FENCED_MEMORY_H_
#define RUNTIME_CPU_FENCED_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace tvm_interop {

// Memory for one tensor, with a page on each side that nobody may touch, called a fence.
//
// A tensor rarely fills whole pages, so it can touch only one of the two fences. `place` says which
// one. The bytes between the tensor and the fences are called the slack. The slack holds a pattern,
// and a later check shows whether the pattern was overwritten.
class FencedMemory {
 public:
  enum class Place { kAfterFence, kBeforeFence };

  // Allocates the memory and sets all bytes of the tensor to `fill`. Throws std::runtime_error if
  // the system cannot provide the memory.
  FencedMemory(size_t nbytes, size_t alignment, Place place, uint8_t fill);
  // Allocates the memory and copies the bytes of the tensor from `contents`. Throws
  // std::runtime_error if the system cannot provide the memory.
  FencedMemory(const void* contents, size_t nbytes, size_t alignment, Place place);
  ~FencedMemory();
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  void* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  // Makes any later write to this memory a fault. Throws std::runtime_error if the system refuses.
  void ForbidWrites();
  // Whether the bytes between the tensor and the fences still hold their pattern.
  bool SlackIsIntact() const;
  // Whether `address` lies in this memory or in its fences.
  bool Encloses(const void* address) const;

 private:
  // Allocates the memory and writes the pattern of the slack.
  FencedMemory(size_t nbytes, size_t alignment, Place place);

  uint8_t* mapped_;
  size_t mapped_nbytes_;
  uint8_t* data_;
  size_t nbytes_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_FENCED_MEMORY_H_

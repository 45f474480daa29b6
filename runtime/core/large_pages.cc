#include "runtime/core/large_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "runtime/core/aligned_memory.h"

namespace tvm_interop {
namespace {

constexpr size_t kAlignment = 64;
// The size of a chunk, from which constants get their memory. A chunk is large, so that only a
// small share of it remains unused at its end. Pages that nobody touches take no memory.
constexpr size_t kChunk = 8 * kLargePage;
// Constants below this size are not put into large pages. They would gain nothing, because such
// small constants stay in the cache.
constexpr size_t kSmall = size_t{16} << 10;

size_t Rounded(size_t nbytes, size_t to) { return (nbytes + to - 1) / to * to; }

// A block of memory in large pages. Constants get consecutive pieces of it.
class Chunk {
 public:
  explicit Chunk(size_t nbytes) : length_(nbytes + kLargePage) {
    void* const mapped =
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    mapped_ = mapped;
    next_ = reinterpret_cast<char*>(Rounded(reinterpret_cast<uintptr_t>(mapped), kLargePage));
    end_ = next_ + nbytes;
    PreferLargePages(next_, nbytes);
  }
  ~Chunk() { munmap(mapped_, length_); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  size_t left() const { return static_cast<size_t>(end_ - next_); }
  char* Take(size_t nbytes) {
    char* const piece = next_;
    next_ += nbytes;
    return piece;
  }

 private:
  size_t length_;
  void* mapped_;
  char* next_;
  char* end_;
};

}  // namespace

void PreferLargePages(void* begin, size_t nbytes) {
#ifdef MADV_HUGEPAGE
  madvise(begin, nbytes, MADV_HUGEPAGE);
#else
  static_cast<void>(begin);
  static_cast<void>(nbytes);
#endif
}

std::shared_ptr<char> ZerosInLargePages(size_t nbytes) {
  if (nbytes < kSmall) return AlignedZeros(nbytes);
  // Each thread has its own chunk, so no lock is needed. A fork could leave a lock locked in the
  // child.
  thread_local std::weak_ptr<Chunk> last;
  const size_t wanted = Rounded(nbytes, kAlignment);
  std::shared_ptr<Chunk> chunk = last.lock();
  if (chunk == nullptr || chunk->left() < wanted) {
    const size_t size = Rounded(std::max(wanted, kChunk), kLargePage);
    const auto made = std::make_shared<Chunk>(size);
    if (chunk == nullptr || size - wanted > chunk->left()) last = made;
    chunk = made;
  }
  return {chunk, chunk->Take(wanted)};
}

}  // namespace tvm_interop

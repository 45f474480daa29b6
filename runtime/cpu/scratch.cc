#include "runtime/cpu/scratch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

#include "runtime/core/aligned_memory.h"
#include "runtime/cpu/preemption_point.h"

namespace tvm_interop {
namespace {

enum BlockState : int {
  kFree,
  kLeased,
  // Leased, and perhaps larger than any kernel needs. The lease frees the memory when it ends.
  kLeasedTooLarge,
};

// Sizes are rounded up to numbers of three binary digits and zeros, at least to `kSmallest`. So
// there are few sizes, and one counter for each says how many kernels need it. Pages that only the
// rounding adds are never touched.
constexpr size_t kSmallest = 4096;
constexpr int kSteps = 4;  // The number of sizes between a power of two and the next one.

// Kernels share a block only with kernels of the same class, whose sizes differ by a factor below
// 4. Without classes, small kernels would often have the large blocks when a large kernel begins,
// and in the end each thread would have a block of the largest size.
constexpr int kSizesOfClass = 2 * kSteps;
constexpr int kClasses = 25;

size_t SizeAt(int index) {
  return (kSmallest / kSteps * (kSteps + index % kSteps)) << (index / kSteps);
}

// Returns the first index whose size is at least `nbytes`.
int IndexOf(size_t nbytes) {
  int index = 0;
  while (index < kClasses * kSizesOfClass - 1 && SizeAt(index) < nbytes) ++index;
  return index;
}

}  // namespace

// A block has its own cache line, because the thread that used it last takes it again and again.
struct alignas(64) ScratchBlock {
  std::atomic<int> state{kLeased};
  std::atomic<size_t> nbytes{0};  // Only a thread that has claimed the block writes it.
  std::shared_ptr<char> memory;   // Only a thread that has claimed the block may use it.
  const int size_class;
  ScratchBlock* next = nullptr;  // Never changes once the block is on the list.

  explicit ScratchBlock(int size_class) : size_class(size_class) {}
};

namespace {

struct SizeClass {
  // The list of blocks. Blocks are only ever added, so a thread may walk along it at any time.
  std::atomic<ScratchBlock*> first{nullptr};
  // The number of kernels that need each size. The numbers say only when to free memory, so a
  // thread that sees an old number does no harm: a lease allocates what it needs.
  std::array<std::atomic<int>, kSizesOfClass> needs{};

  size_t Largest(int size_class) const {
    for (int i = kSizesOfClass - 1; i >= 0; --i) {
      if (needs[i].load(std::memory_order_relaxed) == 0) continue;
      return SizeAt(size_class * kSizesOfClass + i);
    }
    return 0;
  }
};
std::array<SizeClass, kClasses> classes{};

// The blocks that this thread leased last. They are likely free, and their pages are in this
// thread's caches.
thread_local std::array<ScratchBlock*, kClasses> latest{};

bool TryToClaim(ScratchBlock* block) {
  int expected = block->state.load(std::memory_order_relaxed);
  PreemptionPoint();
  return expected == kFree &&
         block->state.compare_exchange_strong(expected, kLeased, std::memory_order_acquire,
                                              std::memory_order_relaxed);
}

// Returns a block that no other thread has claimed.
ScratchBlock* Claim(int size_class) {
  ScratchBlock*& mine = latest[size_class];
  if (mine != nullptr && TryToClaim(mine)) return mine;
  std::atomic<ScratchBlock*>& first = classes[size_class].first;
  for (ScratchBlock* block = first.load(std::memory_order_acquire); block != nullptr;
       block = block->next) {
    if (TryToClaim(block)) return mine = block;
  }
  auto* const made = new ScratchBlock(size_class);
  made->next = first.load(std::memory_order_relaxed);
  while (!first.compare_exchange_weak(made->next, made, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
  return mine = made;
}

void FreeIfTooLarge(ScratchBlock* block) {
  if (block->nbytes.load(std::memory_order_relaxed) <=
      classes[block->size_class].Largest(block->size_class)) {
    return;
  }
  block->memory.reset();
  block->nbytes.store(0, std::memory_order_relaxed);
}

void GiveBack(ScratchBlock* block) {
  PreemptionPoint();
  int expected = kLeased;
  while (!block->state.compare_exchange_strong(expected, kFree, std::memory_order_release,
                                               std::memory_order_relaxed)) {
    // The state is set before the sizes are compared, so that a thread whose kernels end after the
    // comparison sets it again.
    block->state.exchange(kLeased, std::memory_order_acquire);
    FreeIfTooLarge(block);
    expected = kLeased;
  }
}

// Frees the memory of blocks of a class that are larger than any kernel needs now. A block that a
// kernel has is left to the end of its lease.
void FreeLargeBlocks(const SizeClass& of) {
  for (ScratchBlock* block = of.first.load(std::memory_order_acquire); block != nullptr;
       block = block->next) {
    int seen = block->state.load(std::memory_order_relaxed);
    while (!block->state.compare_exchange_weak(seen, seen == kFree ? kLeased : kLeasedTooLarge,
                                               std::memory_order_acq_rel,
                                               std::memory_order_relaxed)) {
    }
    if (seen != kFree) continue;
    FreeIfTooLarge(block);
    GiveBack(block);
  }
}

}  // namespace

void ScratchNeed::Set(size_t nbytes) {
  const size_t before = nbytes_;
  const int index_before = index_;
  nbytes_ = nbytes;
  if (nbytes > 0) {
    index_ = IndexOf(nbytes);
    classes[index_ / kSizesOfClass].needs[index_ % kSizesOfClass].fetch_add(
        1, std::memory_order_relaxed);
  }
  if (before == 0) return;
  SizeClass& of = classes[index_before / kSizesOfClass];
  std::atomic<int>& needs = of.needs[index_before % kSizesOfClass];
  if (needs.fetch_sub(1, std::memory_order_relaxed) == 1) FreeLargeBlocks(of);
}

ScratchLease::ScratchLease(const ScratchNeed& need) {
  if (need.nbytes_ == 0) return;
  const int size_class = need.index_ / kSizesOfClass;
  ScratchBlock* const block = Claim(size_class);
  try {
    if (block->nbytes.load(std::memory_order_relaxed) < need.nbytes_) {
      block->memory.reset();  // The old memory goes first, so that both are never there at once.
      block->nbytes.store(0, std::memory_order_relaxed);
      const size_t nbytes = classes[size_class].Largest(size_class);
      block->memory = AlignedMemory(nbytes);
      block->nbytes.store(nbytes, std::memory_order_relaxed);
    }
  } catch (...) {
    GiveBack(block);
    throw;
  }
  block_ = block;
  data_ = block->memory.get();
}

ScratchLease::~ScratchLease() {
  if (block_ != nullptr) GiveBack(block_);
}

size_t ScratchNbytes() {
  size_t sum = 0;
  for (const SizeClass& of : classes) {
    for (const ScratchBlock* block = of.first.load(std::memory_order_acquire); block != nullptr;
         block = block->next) {
      sum += block->nbytes.load(std::memory_order_relaxed);
    }
  }
  return sum;
}

}  // namespace tvm_interop

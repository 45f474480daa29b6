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
  // The block is leased, and may be larger than all users need by now. In that case its memory is
  // freed when the lease ends.
  kLeasedTooLarge,
};

// Sizes are rounded up to numbers with at most three significant bits, and at least to `kSmallest`.
// So there are few different sizes, and each has a counter of the users that need it. Rounding
// costs no memory, because the pages that it adds are never touched.
constexpr size_t kSmallest = 4096;
constexpr int kSteps = 4;  // The number of sizes between a power of two and the next one.
constexpr int kSizes = 200;

// A user does not take a block that is much larger than the user needs. Otherwise small users would
// often hold the large blocks when a large user begins. The large user would then make another
// block, and in the end each thread would have a block of the largest size.
//
// Kernels begin and end often, so a kernel takes any free block of its size class, and does not
// look for the block that fits best. The sizes of a class differ by a factor below 4. All instances
// share one list. An instance takes a block of at most `kMostTooLarge` times the size that it
// needs.
constexpr int kSizesOfClass = 2 * kSteps;
constexpr int kClasses = kSizes / kSizesOfClass;
constexpr size_t kMostTooLarge = 8;
// The lists of blocks: one for each class of kernels, and one for instances.
constexpr int kOfInstances = kClasses;
constexpr int kLists = kClasses + 1;

size_t SizeAt(int index) {
  return (kSmallest / kSteps * (kSteps + index % kSteps)) << (index / kSteps);
}

// Returns the index of the smallest size (see `SizeAt`) that is at least `nbytes`.
int IndexOf(size_t nbytes) {
  int index = 0;
  while (index < kSizes - 1 && SizeAt(index) < nbytes) ++index;
  return index;
}

}  // namespace

// A block has its own cache line, because the thread that used it last takes it again and again.
struct alignas(64) ScratchBlock {
  std::atomic<int> state{kLeased};
  std::atomic<size_t> nbytes{0};  // Only a thread that has claimed the block writes it.
  std::shared_ptr<char> memory;   // Only a thread that has claimed the block may use it.
  const int list;
  ScratchBlock* next = nullptr;  // Never changes once the block is on the list.

  explicit ScratchBlock(int list) : list(list) {}
};

namespace {

// Blocks are never removed from a list, so a thread may walk along the list at any time.
std::array<std::atomic<ScratchBlock*>, kLists> lists{};

// The numbers of kernels and of instances that need each size. They are used only to decide when to
// free memory. So a thread may safely see an old number: a lease allocates what it needs.
std::array<std::array<std::atomic<int>, kSizes>, 2> needs{};

// The block of each list that this thread leased last. The block is likely free, and its pages are
// in this thread's caches.
thread_local std::array<ScratchBlock*, kLists> latest{};

// Returns the largest size that a user of the list needs.
size_t Largest(int list) {
  const bool is_of_kernels = list != kOfInstances;
  const int first = is_of_kernels ? list * kSizesOfClass : 0;
  const int end = is_of_kernels ? first + kSizesOfClass : kSizes;
  const auto& counts = needs[is_of_kernels ? 0 : 1];
  for (int index = end - 1; index >= first; --index) {
    if (counts[index].load(std::memory_order_relaxed) > 0) return SizeAt(index);
  }
  return 0;
}

bool TryToClaim(ScratchBlock* block) {
  int expected = block->state.load(std::memory_order_relaxed);
  PreemptionPoint();
  return expected == kFree &&
         block->state.compare_exchange_strong(expected, kLeased, std::memory_order_acquire,
                                              std::memory_order_relaxed);
}

// Adds a block, which the calling thread has claimed, to the list.
ScratchBlock* NewBlock(int list) {
  auto* const made = new ScratchBlock(list);
  made->next = lists[list].load(std::memory_order_relaxed);
  while (!lists[list].compare_exchange_weak(made->next, made, std::memory_order_release,
                                            std::memory_order_relaxed)) {
  }
  return made;
}

// Claims a free block for a kernel, or adds a block to the list if none is free.
ScratchBlock* ClaimForKernel(int list) {
  ScratchBlock*& mine = latest[list];
  if (mine != nullptr && TryToClaim(mine)) return mine;
  for (ScratchBlock* block = lists[list].load(std::memory_order_acquire); block != nullptr;
       block = block->next) {
    if (TryToClaim(block)) return mine = block;
  }
  return mine = NewBlock(list);
}

// Returns the free block that is best for an instance that needs `nbytes` bytes, a rounded size
// (see `SizeAt`). The size must be rounded. Otherwise an instance that needs a few bytes would find
// even the smallest blocks too large, and would add a block in each run. Returns null if no block
// is free. The best is the smallest block that is large enough. If none is large enough, it is the
// largest block, which will then grow.
ScratchBlock* BestBlock(size_t nbytes) {
  ScratchBlock* best = nullptr;
  size_t best_nbytes = 0;
  for (ScratchBlock* block = lists[kOfInstances].load(std::memory_order_acquire); block != nullptr;
       block = block->next) {
    const size_t its = block->nbytes.load(std::memory_order_relaxed);
    if (block->state.load(std::memory_order_relaxed) != kFree) continue;
    if (its > nbytes * kMostTooLarge || (its > 0 && its < nbytes / kMostTooLarge)) continue;
    const bool is_better =
        best_nbytes < nbytes ? its > best_nbytes : its >= nbytes && its < best_nbytes;
    if (best != nullptr && !is_better) continue;
    best = block;
    best_nbytes = its;
  }
  return best;
}

// Claims a free block for an instance, or adds a block to the list if no free block fits.
ScratchBlock* ClaimForInstance(size_t nbytes) {
  ScratchBlock*& mine = latest[kOfInstances];
  if (mine != nullptr) {
    const size_t its = mine->nbytes.load(std::memory_order_relaxed);
    if (its >= nbytes && its / 2 <= nbytes && TryToClaim(mine)) return mine;
  }
  while (ScratchBlock* const block = BestBlock(nbytes)) {
    if (TryToClaim(block)) return mine = block;
  }
  return mine = NewBlock(kOfInstances);
}

void FreeIfTooLarge(ScratchBlock* block) {
  if (block->nbytes.load(std::memory_order_relaxed) <= Largest(block->list)) return;
  block->memory.reset();
  block->nbytes.store(0, std::memory_order_relaxed);
}

void GiveBack(ScratchBlock* block) {
  PreemptionPoint();
  int expected = kLeased;
  while (!block->state.compare_exchange_strong(expected, kFree, std::memory_order_release,
                                               std::memory_order_relaxed)) {
    // Set the state to kLeased before comparing the sizes. If users of another thread end after the
    // comparison, that thread sets kLeasedTooLarge again, and the loop compares the sizes once
    // more.
    block->state.exchange(kLeased, std::memory_order_acquire);
    FreeIfTooLarge(block);
    expected = kLeased;
  }
}

// Frees the memory of the blocks of a list that are larger than all users need now. If such a block
// is leased, its memory is freed when the lease ends.
void FreeLargeBlocks(int list) {
  for (ScratchBlock* block = lists[list].load(std::memory_order_acquire); block != nullptr;
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
  const int size_before = size_;
  auto& counts = needs[static_cast<size_t>(user_)];
  nbytes_ = nbytes;
  size_ = IndexOf(nbytes);
  if (nbytes > 0) counts[size_].fetch_add(1, std::memory_order_relaxed);
  if (before == 0 || counts[size_before].fetch_sub(1, std::memory_order_relaxed) > 1) return;
  FreeLargeBlocks(user_ == ScratchUser::kKernel ? size_before / kSizesOfClass : kOfInstances);
}

ScratchLease::ScratchLease(const ScratchNeed& need) {
  if (need.nbytes_ == 0) return;
  const bool is_kernel = need.user_ == ScratchUser::kKernel;
  ScratchBlock* const block =
      is_kernel ? ClaimForKernel(need.size_ / kSizesOfClass) : ClaimForInstance(SizeAt(need.size_));
  try {
    if (block->nbytes.load(std::memory_order_relaxed) < need.nbytes_) {
      block->memory.reset();  // The old memory goes first, so that both are never there at once.
      block->nbytes.store(0, std::memory_order_relaxed);
      // Larger kernels of the same class will take this block too, so give it the size that the
      // largest of them needs.
      const size_t nbytes = is_kernel ? Largest(block->list) : SizeAt(need.size_);
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
  for (const auto& first : lists) {
    for (const ScratchBlock* block = first.load(std::memory_order_acquire); block != nullptr;
         block = block->next) {
      sum += block->nbytes.load(std::memory_order_relaxed);
    }
  }
  return sum;
}

}  // namespace tvm_interop

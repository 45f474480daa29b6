// Tests the scratch memory that kernels take turns with. It is plain memory, so ThreadSanitizer
// reports two kernels that have the same block, and a kernel that does not wait for the last user
// of its block.

#include "runtime/cpu/scratch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/cpu/executor.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/cpu/preemption_point.h"
#include "runtime/cpu/thread_pool.h"
#include "tests/cpp/check.h"

using tvm_interop::CpuExecutor;
using tvm_interop::Kernel;
using tvm_interop::PlannedOp;
using tvm_interop::PreemptionPoint;
using tvm_interop::RunParallelLoop;
using tvm_interop::ScratchLease;
using tvm_interop::ScratchNbytes;
using tvm_interop::ScratchNeed;
using tvm_interop::ScratchUser;
using tvm_interop::ThreadPool;

namespace {

// With a sanitizer, each run takes longer, but fewer runs are enough to find a fault.
#ifdef TVM_INTEROP_FORCED_PREEMPTION
constexpr int kRounds = 300;
#else
constexpr int kRounds = 2000;
#endif
// The two sizes are similar, so kernels that need them share blocks.
constexpr size_t kLarge = size_t{3} << 20, kSmaller = size_t{1} << 20;

// Fills scratch memory with a number and reads it again. Fails if anybody else writes there
// meanwhile.
void UseScratch(const ScratchNeed& need, int number) {
  const ScratchLease lease(need);
  int* const numbers = reinterpret_cast<int*>(lease.data());
  const size_t count = need.nbytes() / sizeof(int);
  for (size_t i = 0; i < count; ++i) numbers[i] = number;
  PreemptionPoint();
  std::this_thread::yield();
  for (size_t i = 0; i < count; ++i) CHECK_EQ(numbers[i], number);
}

struct ScratchKernel : Kernel {
  explicit ScratchKernel(size_t nbytes, int number) : need(nbytes), number(number) {}
  void Run() override { UseScratch(need, number); }
  ScratchNeed need;
  int number;
};

// Each task of the kernel's loop has a lease of its own.
struct LoopKernel : Kernel {
  explicit LoopKernel(size_t nbytes) : need(nbytes) {}
  void Run() override {
    const ScratchLease outer(need);
    std::memset(outer.data(), 1, need.nbytes());
    const int failed = RunParallelLoop(
        [](int task, int, void* data) {
          UseScratch(static_cast<LoopKernel*>(data)->need, task);
          return 0;
        },
        this, 6);
    CHECK_EQ(failed, 0);
    const char* const end = outer.data() + need.nbytes();
    CHECK(std::all_of(static_cast<const char*>(outer.data()), end, [](char c) { return c == 1; }));
  }
  ScratchNeed need;
};

// A model whose operators all need scratch memory, and do not wait for each other.
class Model {
 public:
  Model(int streams, size_t nbytes, std::shared_ptr<ThreadPool> guests = nullptr) {
    std::vector<PlannedOp> ops;
    for (int i = 0; i < 4 * streams; ++i) {
      if (i % 4 == 3) {
        kernels_.push_back(std::make_unique<LoopKernel>(nbytes));
      } else {
        kernels_.push_back(std::make_unique<ScratchKernel>(nbytes + 64 * i, i));
      }
      ops.push_back({"op", kernels_.back().get(), i % streams, {}});
    }
    executor_ = std::make_unique<CpuExecutor>(streams, 2, ops, std::move(guests));
  }
  void Run() { executor_->Run(); }

 private:
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::unique_ptr<CpuExecutor> executor_;
};

TEST_CASE(AKernelThatNeedsNothingHasNoBlock) {
  const ScratchNeed none;
  const ScratchLease lease(none);
  CHECK(lease.data() == nullptr);
  CHECK_EQ(ScratchNbytes(), size_t{0});
}

TEST_CASE(KernelsTakeTurnsWithOneBlock) {
  const ScratchNeed small(kSmaller), large(kLarge);
  char* first = nullptr;
  for (int i = 0; i < 10; ++i) {
    const ScratchLease lease(i % 2 == 0 ? small : large);
    CHECK(lease.data() != nullptr);
    CHECK_EQ(reinterpret_cast<uintptr_t>(lease.data()) % 64, uintptr_t{0});
    if (i == 0) first = lease.data();
    CHECK_EQ(lease.data(), first);
  }
  CHECK(ScratchNbytes() >= kLarge && ScratchNbytes() < kLarge * 3 / 2);
}

TEST_CASE(SmallKernelsLeaveLargeBlocksAlone) {
  const ScratchNeed small(100), large(kLarge);
  char* block = nullptr;
  {
    const ScratchLease lease(large);
    block = lease.data();
  }
  const ScratchLease other(small);
  CHECK(other.data() < block || other.data() >= block + kLarge);
  const ScratchLease again(large);
  CHECK(again.data() == block);
  CHECK(ScratchNbytes() < kLarge * 3 / 2);
}

TEST_CASE(LeasesAtTheSameTimeHaveDifferentBlocks) {
  for (const ScratchUser user : {ScratchUser::kKernel, ScratchUser::kInstance}) {
    const ScratchNeed need(kLarge, user);
    const ScratchLease one(need), two(need);
    CHECK(one.data() + kLarge <= two.data() || two.data() + kLarge <= one.data());
  }
}

TEST_CASE(InstancesOfManySizesTakeTurnsWithOneBlock) {
  const ScratchNeed sizes[] = {ScratchNeed(kSmaller, ScratchUser::kInstance),
                               ScratchNeed(2 * kSmaller, ScratchUser::kInstance),
                               ScratchNeed(5 * kSmaller, ScratchUser::kInstance)};
  for (int i = 0; i < 9; ++i) {
    const ScratchLease lease(sizes[i % 3]);
    CHECK(ScratchNbytes() <= sizes[std::min(i, 2)].nbytes() * 5 / 4);
  }
  // Neither a kernel nor a small instance takes the block of the large instance.
  const ScratchNeed kernel(5 * kSmaller), tiny(100, ScratchUser::kInstance);
  char* block = nullptr;
  {
    const ScratchLease lease(sizes[2]);
    block = lease.data();
  }
  const ScratchLease other(kernel), third(tiny), again(sizes[2]);
  CHECK(again.data() == block);
}

TEST_CASE(TinyInstancesTakeTurnsWithOneBlock) {
  constexpr size_t kSmallestBlock = 4096;
  for (const size_t nbytes : {1, 100, 511, 513, 4096}) {
    const ScratchNeed tiny(nbytes, ScratchUser::kInstance);
    for (int i = 0; i < 10; ++i) {
      const ScratchLease lease(tiny);
      CHECK_EQ(ScratchNbytes(), kSmallestBlock);
    }
    // A new thread has used no block yet.
    std::thread([&] { const ScratchLease lease(tiny); }).join();
    CHECK_EQ(ScratchNbytes(), kSmallestBlock);
  }
}

TEST_CASE(AnInstanceTakesTheSmallestBlockThatIsLargeEnough) {
  const ScratchNeed small(kSmaller, ScratchUser::kInstance);
  const ScratchNeed large(2 * kSmaller, ScratchUser::kInstance);
  const ScratchNeed larger(4 * kSmaller, ScratchUser::kInstance);
  const char *of_small = nullptr, *of_large = nullptr, *of_larger = nullptr;
  {
    const ScratchLease three(larger), two(large), one(small);
    of_small = one.data();
    of_large = two.data();
    of_larger = three.data();
  }
  // A new thread has used no block yet, so it prefers none. It must get a block of the right size.
  std::thread([&] {
    const ScratchLease one(small), two(small), three(small);
    CHECK(one.data() == of_small && two.data() == of_large && three.data() == of_larger);
  }).join();
}

TEST_CASE(MemoryGoesWithTheKernelsThatNeedIt) {
  const ScratchNeed small(kSmaller);
  {
    const ScratchNeed large(kLarge), as_large(kLarge);
    {
      const ScratchLease lease(large);
    }
    CHECK(ScratchNbytes() >= kLarge);
    {
      const ScratchNeed other(kLarge);
    }
    CHECK(ScratchNbytes() >= kLarge);
  }
  CHECK_EQ(ScratchNbytes(), size_t{0});
  {
    const ScratchLease lease(small);
  }
  CHECK(ScratchNbytes() < kLarge);
  // A block that is leased is freed when the lease ends.
  {
    std::optional<ScratchNeed> large(kLarge);
    {
      const ScratchLease lease(*large);
    }
    const ScratchLease in_use(small);
    large.reset();
    CHECK(ScratchNbytes() >= kLarge);
    std::memset(in_use.data(), 1, small.nbytes());
  }
  CHECK(ScratchNbytes() < kLarge);
}

TEST_CASE(ABlockComesBackIfMemoryIsShort) {
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  const ScratchNeed need(1000);
  const char* before = nullptr;
  {
    const ScratchNeed too_large(size_t{1} << 50);
    CHECK_THROWS(ScratchLease{too_large}, std::bad_alloc);
  }
  for (int i = 0; i < 3; ++i) {
    const ScratchLease lease(need);
    if (i == 0) before = lease.data();
    CHECK(lease.data() == before);
  }
#endif
}

TEST_CASE(NoTwoThreadsHaveOneBlock) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int round = 0; round < kRounds; ++round) {
        // Users of several sizes begin and end, so blocks grow and are freed while other users have
        // blocks.
        const ScratchNeed need(size_t{64} << ((round * 7 + t) % 12),
                               round % 2 == 0 ? ScratchUser::kKernel : ScratchUser::kInstance);
        UseScratch(need, round * 4 + t);
        UseScratch(need, -round * 4 - t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(ScratchNbytes(), size_t{0});
}

TEST_CASE(ThereAreAsManyBlocksAsKernelsAtATime) {
  const ScratchNeed need(kLarge);
  for (int i = 0; i < 20; ++i) {
    std::thread([&] { UseScratch(need, i); }).join();
  }
  // The other tests ran more threads, but their scratch memory has been freed.
  CHECK(ScratchNbytes() < kLarge * 3 / 2);
}

TEST_CASE(StreamsAndLoopsHaveBlocksOfTheirOwn) {
  Model model(3, 4096);
  for (int round = 0; round < kRounds / 10; ++round) model.Run();
}

TEST_CASE(ModelsOfSeveralThreadsAndGuestsHaveBlocksOfTheirOwn) {
  std::vector<std::thread> helpers, callers;
  const auto pool = ThreadPool::OfGuests({2, [&](void (*task)(void*), void* argument) {
                                            static std::mutex mutex;
                                            const std::lock_guard<std::mutex> lock(mutex);
                                            helpers.emplace_back(task, argument);
                                            return true;
                                          }});
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&, t] {
      for (int round = 0; round < kRounds / 100; ++round) {
        Model model(2, size_t{1024} << (2 * t), t == 0 ? pool : nullptr);
        for (int run = 0; run < 5; ++run) model.Run();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (std::thread& helper : helpers) helper.join();
}

TEST_CASE(AForkedChildIsNotHeldUp) {
#if !defined(__SANITIZE_THREAD__)
  const ScratchNeed need(kLarge);
  std::atomic<bool> is_leased{false}, ends{false};
  std::thread other([&] {
    const ScratchLease lease(need);
    is_leased.store(true);
    while (!ends.load()) std::this_thread::yield();
  });
  while (!is_leased.load()) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    UseScratch(need, 5);
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  ends.store(true);
  other.join();
  CHECK_EQ(status, 0);
#endif
}

}  // namespace

#ifndef RUNTIME_CPU_SCRATCH_H_
#define RUNTIME_CPU_SCRATCH_H_

#include <cstddef>

namespace tvm_interop {

// Scratch memory: what a kernel needs only while it runs, such as a scratchpad or a copy of a
// tensor in another layout. Nothing in it outlives the run, so kernels take turns with it.
//
// The process has a list of blocks that all kernels share, whatever instance, model or stream they
// belong to. For kernels of similar sizes there are as many blocks as such kernels have ever run at
// the same time, which is at most one for each thread. No block is larger than the largest of these
// kernels needs.
//
// Why sharing is safe: a kernel has a block only by a `ScratchLease`, from before its first access
// to after its last one.
//
// 1. At most one lease holds a block. The claim is a single atomic step on the block's state, so
//    this holds for two streams of a model, for several models, for parts of one operator, for
//    guests, and for a kernel that runs inside of another one.
// 2. The end of a lease releases, and the claim of the next one acquires. So what a kernel writes
//    to a block happens after all that the last kernel did there, on whichever thread.
// 3. A lease ends after the kernel's last access: kernels wait for their own parallel work.
// 4. A kernel reads only what it has written in the same run. A block holds arbitrary bytes of
//    other kernels at first.
//
// `tests/cpp/scratch_test.cc` fails without 1 to 3 (`tests/cpp/mutations.py` removes each), and
// `tests/unit/test_scratch.py` without 4.
//
// Nothing here locks a mutex, so a fork cannot leave one locked in the child. A block that another
// thread had leased during the fork stays leased in the child, which makes a new one.

// How much scratch memory one kernel needs. A kernel has such an object for as long as it lives.
// When the kernels that need most are gone, blocks that are larger than the others need are freed.
class ScratchNeed {
 public:
  ScratchNeed() = default;
  explicit ScratchNeed(size_t nbytes) { Set(nbytes); }
  ~ScratchNeed() { Set(0); }
  ScratchNeed(const ScratchNeed&) = delete;
  ScratchNeed& operator=(const ScratchNeed&) = delete;

  // Must not be called while a lease for this object begins or lives.
  void Set(size_t nbytes);
  size_t nbytes() const { return nbytes_; }

 private:
  friend class ScratchLease;
  size_t nbytes_ = 0;
  int index_ = 0;  // Says the size that `nbytes_` is rounded up to.
};

struct ScratchBlock;

// Holds a block of scratch memory of at least the size that a kernel needs. No other lease has the
// block while this object lives.
class ScratchLease {
 public:
  // Throws std::bad_alloc.
  explicit ScratchLease(const ScratchNeed& need);
  ~ScratchLease();
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  // The address is a multiple of 64. It is null if the kernel needs no bytes.
  char* data() const { return data_; }

 private:
  ScratchBlock* block_ = nullptr;
  char* data_ = nullptr;
};

// The size of all blocks together, in bytes. Pages that no kernel has touched yet take no memory.
// Leases that begin or end at the same time may be counted or not.
size_t ScratchNbytes();

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_SCRATCH_H_

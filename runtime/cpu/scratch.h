#ifndef RUNTIME_CPU_SCRATCH_H_
#define RUNTIME_CPU_SCRATCH_H_

#include <cstddef>

namespace tvm_interop {

// Scratch memory: what is needed only during a run. A kernel needs it for scratchpads and for
// copies of tensors in other layouts, and an instance of a model for the tensors between its
// operators. Nothing in it outlives the run, so kernels and instances, the users of the memory,
// take turns.
//
// The process has a list of blocks that all users share, whatever model or stream they belong to.
// For users of similar sizes there are as many blocks as such users have ever run at the same time.
// No block is larger than the largest of these users needs.
//
// Why sharing is safe: a user has a block only by a `ScratchLease`, from before its first access to
// after its last one.
//
// 1. At most one lease holds a block. The claim is a single atomic step on the block's state, so
//    this holds for two streams of a model, for several models, for parts of one operator, for
//    guests, and for a kernel that runs inside of another one.
// 2. The end of a lease releases, and the claim of the next one acquires. So what a user writes to
//    a block happens after all that the last user did there, on whichever thread.
// 3. A lease ends after the user's last access. Kernels wait for their own parallel work. The run
//    of an instance ends when all operators have ended and the outputs have been copied, and the
//    thread that ends the lease sees all that they wrote (docs/threads.md).
// 4. A user reads only what it has written in the same run. A block holds arbitrary bytes of other
//    users at first.
//
// `tests/cpp/scratch_test.cc` fails without 1 to 3 (`tests/cpp/mutations.py` removes each),
// `tests/cpp/instance_test.cc` if an instance does not keep 3, and `tests/unit/test_scratch.py`
// without 4.
//
// Nothing here locks a mutex, so a fork cannot leave one locked in the child. A block that another
// thread had leased during the fork stays leased in the child, which makes a new one.

// What a user of scratch memory is. Kernels and instances share no blocks: an instance holds its
// block while its kernels take theirs, so each thread would take another block in each run.
enum class ScratchUser : size_t { kKernel, kInstance };

// How much scratch memory one user needs. The user has such an object for as long as it lives. When
// the users that need most are gone, blocks that are larger than the others need are freed.
class ScratchNeed {
 public:
  explicit ScratchNeed(size_t nbytes = 0, ScratchUser user = ScratchUser::kKernel) : user_(user) {
    Set(nbytes);
  }
  ~ScratchNeed() { Set(0); }
  ScratchNeed(const ScratchNeed&) = delete;
  ScratchNeed& operator=(const ScratchNeed&) = delete;

  // Must not be called while a lease for this object begins or lives.
  void Set(size_t nbytes);
  size_t nbytes() const { return nbytes_; }

 private:
  friend class ScratchLease;
  const ScratchUser user_;
  size_t nbytes_ = 0;
  int size_ = 0;  // Says what `nbytes_` is rounded up to.
};

struct ScratchBlock;

// Holds a block of scratch memory of at least the size that its user needs. No other lease has the
// block while this object lives.
class ScratchLease {
 public:
  // Throws std::bad_alloc.
  explicit ScratchLease(const ScratchNeed& need);
  ~ScratchLease();
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  // The address is a multiple of 64. It is null if the user needs no bytes.
  char* data() const { return data_; }

 private:
  ScratchBlock* block_ = nullptr;
  char* data_ = nullptr;
};

// The size of all blocks together, in bytes. Pages that no user has touched yet take no memory.
// Leases that begin or end at the same time may be counted or not.
size_t ScratchNbytes();

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_SCRATCH_H_

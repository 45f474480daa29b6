#ifndef RUNTIME_CPU_SCRATCH_H_
#define RUNTIME_CPU_SCRATCH_H_

#include <cstddef>

namespace tvm_interop {

// Scratch memory is memory that is needed only during a run. A kernel needs it for scratchpads and
// for copies of tensors in other layouts. An instance of a model needs it for the tensors between
// its operators. The contents are not needed after the run. So the users of the memory, kernels and
// instances, share it one after the other.
//
// The process has a list of blocks for each size class of kernels, and one for instances. The users
// of a list share its blocks, whatever model or stream they belong to. A list has as many blocks as
// users of the list have ever run at the same time. No block is larger than the largest need of
// these users.
//
// Sharing is safe for the following reasons. A user has a block only while it has a `ScratchLease`,
// which begins before the user's first access and ends after its last access.
//
// 1. At most one lease holds a block. The claim is a single atomic step on the block's state. So it
//    does not matter which users compete: streams of a model, several models, parts of one
//    operator, threads of the program's own pool (guests), or a kernel that runs inside of another
//    kernel.
// 2. The end of a lease is a release operation, and the claim by the next lease is an acquire
//    operation. So a user's writes to a block happen after all accesses of the block's last user,
//    whichever threads the two users run on.
// 3. A lease ends after the user's last access. Kernels wait for their own parallel work. The run
//    of an instance ends when all operators have ended and the outputs have been copied, and the
//    thread that ends the lease sees everything that the operators wrote (docs/threads.md).
// 4. A user reads only what it has written in the same run. A block holds arbitrary bytes of other
//    users at first.
//
// If point 1, 2 or 3 does not hold, `tests/cpp/scratch_test.cc` fails (`tests/cpp/mutations.py`
// breaks each of them). `tests/cpp/instance_test.cc` fails if point 3 does not hold for an
// instance, and `tests/unit/test_scratch.py` fails if point 4 does not hold.
//
// Nothing here locks a mutex, so a fork cannot leave a mutex locked in the child. A block that
// another thread had leased during the fork stays leased in the child. The child makes a new block
// instead.

// The kind of a user of scratch memory. Kernels and instances share no blocks. The reason is speed.
// An instance holds its block while its kernels take their blocks. If they shared blocks, a thread
// would take a different block in each run, whose pages would not be in the thread's caches.
enum class ScratchUser : size_t { kKernel, kInstance };

// The amount of scratch memory that one user needs. The object exists as long as its user. When the
// users with the largest needs are gone, blocks may be larger than all other users need. The memory
// of these blocks is then freed.
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

// A lease holds a block of scratch memory of at least the size that its user needs. No other lease
// holds the block while this object lives.
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

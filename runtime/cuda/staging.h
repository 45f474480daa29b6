#ifndef RUNTIME_CUDA_STAGING_H_
#define RUNTIME_CUDA_STAGING_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/cuda/api.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

// Copies between the host and GPUs go through pinned memory, which a GPU reads and writes by
// itself. The driver would first copy any other memory of the host, and the host would have to
// wait.
//
// The host, the GPU and the caller share buffers. A slot is the pinned memory of one input or
// output, and a piece is one of the two buffers of a loader. The following list has each shared
// buffer, the order that makes it correct, and the mechanism that ensures the order:
//
// 1. The host writes a slot or piece after the copy that last read it: an event of the slot.
// 2. A copy writes an input after the runs before it, which read the input: every run ends on the
//    first stream, where the copy is. A copy on another GPU waits for the first stream.
// 3. A run reads an input after the copy: every run begins on the first stream, where the copy is.
//    The first stream waits for a copy on another GPU.
// 4. A copy reads an output after the run that wrote it, for the same reason as in 2.
// 5. The host reads a slot or piece after the copy that wrote it: an event of the slot.
// 6. Pinned memory is freed after the last copy: the event of each slot or piece.
// 7. A tensor of the caller is read after the caller's work on it, and may be changed by the caller
//    when our copy has ended: the streams of DLPack, and a wait of the host.
// 8. A caller's stream reads an output in place after the run that wrote it: an event that
//    `OrderAfter` records.
// 9. When an executor is made, it tries each kernel on any stream. This comes after the copies of
//    weights and the filling with zeros: a wait of the host (`CudaStreams::Settle`).
//
// For each of the points 1 to 8, the tests in `test_staging.py` remove the wait and find wrong
// results. For point 9 they only check that there is a wait.

// A block of the host's memory that is pinned.
class PinnedMemory {
 public:
  // Throws std::runtime_error if there is not enough memory.
  explicit PinnedMemory(size_t nbytes);
  char* at(size_t offset) const { return static_cast<char*>(memory_.get()) + offset; }

 private:
  struct Closer {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Closer> memory_;
};

// A part of pinned memory, and the event at the end of the last copy that used it.
class PinnedPart {
 public:
  PinnedPart(std::shared_ptr<CudaStreams> streams, char* memory);
  ~PinnedPart();
  PinnedPart(PinnedPart&&) = default;

  char* memory() const { return memory_; }
  // Notes that the copies so far on the first stream may use this part of pinned memory.
  void Note();
  // Waits until the copies that the last call of `Note` recorded have ended.
  void Await();

 private:
  std::shared_ptr<CudaStreams> streams_;
  char* memory_;
  cuda::OwnedEvent ended_;
  bool is_used_ = false;
};

// Copies tensors of any size between the host and GPUs, between two runs, through two small pieces
// of pinned memory. `ToDevice` returns when the host's memory may be changed, and does not wait for
// the last copy. Only one thread at a time may use a loader.
class CudaLoader {
 public:
  explicit CudaLoader(std::shared_ptr<CudaStreams> streams);
  // The next two functions throw std::runtime_error if the streams are in use or have no stream on
  // `device`.
  void ToDevice(int device, void* to, const void* from, size_t nbytes);
  void ToHost(int device, void* to, const void* from, size_t nbytes);

 private:
  std::shared_ptr<CudaStreams> streams_;
  PinnedMemory memory_;
  std::array<PinnedPart, 2> pieces_;
  size_t next_ = 0;
};

// The pinned memory for the inputs and outputs of one instance, with a slot for each of them. It is
// allocated once.
class CudaStaging {
 public:
  struct Place {
    int device;
    void* address;
  };
  // An input or output, with its tensors on GPUs. `Fetch` reads the first of these tensors.
  struct Port {
    std::vector<Place> places;
    size_t nbytes;
  };

  CudaStaging(std::shared_ptr<CudaStreams> streams, std::vector<Port> ports);

  // Copies the host's memory to a port (an input or output), for the next run. Returns when the
  // memory may be changed.
  void Write(size_t port, const void* from);
  // Begins to copy a port to its slot of pinned memory after the last run, and does not wait. The
  // caller must hold a lease of the streams.
  void Fetch(size_t port);
  // Works like `Fetch`, but takes the lease of the streams itself.
  void FetchAlone(size_t port);
  // Copies the tensor that was fetched last to the host's memory.
  void Take(size_t port, void* to);

 private:
  std::shared_ptr<CudaStreams> streams_;
  std::vector<Port> ports_;
  PinnedMemory memory_;
  std::vector<PinnedPart> slots_;
};

// Copies a tensor of a GPU to other tensors of GPUs, between two runs. The copies begin after the
// work on the stream `producer` of the GPU `device`, and have ended when the call returns.
void CopyOnDevice(CudaStreams* streams, int device, const std::vector<void*>& to, const void* from,
                  size_t nbytes, cuda::Stream producer);

// Lets the stream `consumer` of the GPU `device` wait until all runs that were started have ended.
void OrderAfter(CudaStreams* streams, int device, cuda::Stream consumer);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_STAGING_H_

#ifndef RUNTIME_CPU_ONEDNN_KERNEL_H_
#define RUNTIME_CPU_ONEDNN_KERNEL_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/owned.h"
#include "runtime/cpu/kernel_library.h"
#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/scratch.h"

namespace tvm_interop {
namespace onednn {

// Throws std::runtime_error that names `what` unless `status` is success.
void Check(int status, const char* what);

// Sets the OpenMP team size of the calling thread while this object lives, and restores the earlier
// size at the end. oneDNN reads the team size when it makes a primitive and when it runs a
// primitive. Other users of OpenMP share the same setting.
class TeamGuard {
 public:
  TeamGuard(const Api& api, int threads) : api_(api) {
    if (api_.set_team_size == nullptr || threads < 1) return;
    before_ = api_.team_size();
    if (before_ == threads) {
      before_ = 0;
    } else {
      api_.set_team_size(threads);
    }
  }
  ~TeamGuard() {
    if (before_ > 0) api_.set_team_size(before_);
  }
  TeamGuard(const TeamGuard&) = delete;
  TeamGuard& operator=(const TeamGuard&) = delete;

 private:
  const Api& api_;
  int before_ = 0;
};

// A oneDNN primitive, with reorders before and after it. The reorders bring the arguments into the
// layouts that the primitive needs.
class OneDnnKernel : public LibraryKernel {
 public:
  // `api` and `engine` must outlive the kernel.
  OneDnnKernel(const Api& api, Engine engine, int threads);

  // Adds a tensor argument. The tensor's address is read from `argument` whenever the kernel runs.
  // This function and the next three return the number of the added tensor.
  int AddArgument(const KernelArgument& argument, const MemoryDescObject* desc);
  // Adds a tensor whose contents are needed only during a run. It lies in scratch memory that the
  // kernel leases for the run. This memory holds arbitrary bytes at first.
  int AddBuffer(const MemoryDescObject* desc);
  // Gives the kernel a tensor of its own that holds one integer. oneDNN takes zero points in this
  // form.
  int AddNumber(const MemoryDescObject* desc, int32_t number);
  // Adds `argument` in the layout `wanted`. If the argument has this layout, no copy is made.
  // Otherwise a reorder copies it before each run. A constant argument is reordered only by
  // `Repack`, and all kernels that want the same copy share it.
  int AddInput(const KernelArgument& argument, const MemoryDescObject* desc,
               const MemoryDescObject* wanted);

  // Adds a call to the end of the list of calls. Each pair in `tensors` holds oneDNN's number for
  // an argument, and the number that an `Add...` function returned for the tensor.
  void AddPrimitive(PrimitiveDesc desc, std::vector<std::pair<int, int>> tensors);
  void AddReorder(int from, int to);

  void Run() override;
  void Repack() override;
  std::string implementation() const override { return implementation_; }
  int num_reorders() const override { return num_reorders_; }

 private:
  struct Tensor {
    Owned<MemoryDesc> desc;
    Owned<Memory> memory;
    // Where the tensor lies: in an argument, in scratch memory, or in memory of its own.
    void* const* address = nullptr;  // Points to the argument's address.
    bool is_scratch = false;
    size_t offset = 0;      // The position, in bytes after `*address` or in the scratch memory.
    void* bound = nullptr;  // The address that `memory` has now.
    std::shared_ptr<void> own;
  };
  struct Call {
    Owned<Primitive> primitive;
    std::vector<BoundArgument> arguments;
  };

  // The reorder of a constant into the layout that a primitive needs.
  struct Packing {
    int from;
    int to;
    size_t bytes;  // The size from the constant's first number to its last.
    bool is_read_only;
    Call call;
  };

  Owned<MemoryDesc> CopyOf(const MemoryDescObject* desc) const;
  // Adds a tensor at `address`. The address is null if it is not known yet.
  int AddTensor(const MemoryDescObject* desc, void* address);
  Call MakeCall(PrimitiveDesc desc, const std::vector<std::pair<int, int>>& tensors);
  Call MakeReorder(int from, int to);
  // Adds the scratchpad of a primitive, if it needs one, to the primitive's tensors.
  void AddScratchpad(PrimitiveDesc desc, std::vector<std::pair<int, int>>* tensors);
  // `scratch` is the scratch memory that the kernel has leased for this run.
  void BindAddresses(char* scratch);
  void Execute(const Call* calls, size_t count);

  const Api& api_;
  Engine engine_;
  int threads_;
  Owned<Stream> stream_;
  std::vector<Tensor> tensors_;
  ScratchNeed scratch_;
  std::vector<Packing> packing_;
  std::vector<Call> running_;
  std::string implementation_;
  int num_reorders_ = 0;
};

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_KERNEL_H_

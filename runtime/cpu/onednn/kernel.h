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

namespace tvm_interop {
namespace onednn {

// Throws std::runtime_error where a call did not succeed.
void Check(int status, const char* what);

// The calling thread's team size while this object lives; then what it was. oneDNN asks for it
// when a primitive is made and when it runs, and other users of OpenMP share it.
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

// A primitive between the reorders that bring its arguments into the layouts it asks for.
class OneDnnKernel : public LibraryKernel {
 public:
  // `api` and `engine` outlive the kernel.
  OneDnnKernel(const Api& api, Engine engine, int threads);

  // Tensors, told apart by number. An argument lies where `argument` says when the kernel runs.
  int AddArgument(const KernelArgument& argument, const MemoryDescObject* desc);
  // Memory of the kernel's own.
  int AddBuffer(const MemoryDescObject* desc);
  // One integer, as oneDNN takes zero points.
  int AddNumber(const MemoryDescObject* desc, int32_t number);
  // `argument` as `wanted`: itself, or a copy that is reordered before each run, or once only where
  // the argument is constant; then all kernels that want the same share it.
  int AddInput(const KernelArgument& argument, const MemoryDescObject* desc,
               const MemoryDescObject* wanted);

  // Calls, in the order they are to be made.
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
    void* const* address = nullptr;  // Null for memory of our own.
    size_t offset = 0;               // Bytes after `*address`.
    void* bound = nullptr;           // The address that `memory` has now.
    std::shared_ptr<void> own;
  };
  struct Call {
    Owned<Primitive> primitive;
    std::vector<BoundArgument> arguments;
  };

  // A constant's way into the layout that a primitive asks for.
  struct Packing {
    int from;
    int to;
    size_t bytes;  // From the constant's first number to its last.
    Call call;
  };

  // A tensor at `address`, which may be null until it is known.
  int AddTensor(const MemoryDescObject* desc, void* address);
  Call MakeCall(PrimitiveDesc desc, const std::vector<std::pair<int, int>>& tensors);
  Call MakeReorder(int from, int to);
  void BindAddresses();
  void Execute(const Call* calls, size_t count);

  const Api& api_;
  Engine engine_;
  int threads_;
  Owned<Stream> stream_;
  std::vector<Tensor> tensors_;
  std::vector<Packing> packing_;
  std::vector<Call> running_;
  std::string implementation_;
  int num_reorders_ = 0;
};

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_KERNEL_H_

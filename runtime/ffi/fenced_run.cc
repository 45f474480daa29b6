// Bindings that run one kernel on tensors between fences (see `FencedMemory`). Python's check of a
// kernel uses them to find accesses outside of the kernel's tensors.

#include <signal.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cpu/caught_fault.h"
#include "runtime/cpu/fenced_memory.h"
#include "runtime/cpu/kernel_library.h"
#include "runtime/cpu/kernel_share.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/ffi/alignment.h"
#include "runtime/ffi/guarded.h"
#include "runtime/ffi/op_description.h"

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;

// The arguments of a kernel, each between fences.
class FencedArguments {
 public:
  FencedArguments(const ffi::Array<ffi::Tensor>& inputs, const ffi::Array<ffi::Tensor>& outputs,
                  FencedMemory::Place place, uint8_t fill)
      : num_inputs_(inputs.size()) {
    for (const ffi::Tensor& tensor : inputs) {
      Add(tensor,
          std::make_unique<FencedMemory>(tensor.data_ptr(), Size(tensor), kTensorAlignment, place));
      memory_.back()->ForbidWrites();
    }
    for (const ffi::Tensor& tensor : outputs) {
      Add(tensor, std::make_unique<FencedMemory>(Size(tensor), kTensorAlignment, place, fill));
    }
    for (DLTensor& header : headers_) packed_.emplace_back(&header);
  }

  // The address of each tensor, the outputs last.
  std::vector<void*> addresses() const {
    std::vector<void*> found;
    for (const auto& memory : memory_) found.push_back(memory->data());
    return found;
  }

  void Call(const ffi::Function& kernel) {
    ffi::Any result;
    kernel.CallPacked(packed_.data(), static_cast<int32_t>(packed_.size()), &result);
  }

  // Returns a description of the run's forbidden memory access. If there was none, returns an empty
  // string and copies the results to `outputs`.
  std::string Outcome(const std::optional<Fault>& fault,
                      const ffi::Array<ffi::Tensor>& outputs) const {
    if (fault) return Describe(*fault);
    std::string broken = BrokenSlack();
    if (broken.empty()) CopyOutputs(outputs);
    return broken;
  }

 private:
  static size_t Size(const ffi::Tensor& tensor) {
    return ffi::GetDataSize(*tensor.GetDLTensorPtr());
  }

  void CopyOutputs(const ffi::Array<ffi::Tensor>& outputs) const {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const FencedMemory& memory = *memory_.at(num_inputs_ + i);
      std::memcpy(outputs[i].data_ptr(), memory.data(), memory.nbytes());
    }
  }

  // The bytes between the tensor of an argument and the fences are called slack. Returns a text
  // that names an argument whose slack was overwritten, or an empty string if there is none.
  std::string BrokenSlack() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (!memory_[i]->SlackIsIntact()) return "writes outside of " + Name(i);
    }
    return "";
  }

  std::string Describe(const Fault& fault) const {
    if (fault.signal == SIGFPE) return "divides an integer by 0, or overflows in the division";
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (!memory_[i]->Encloses(fault.address)) continue;
      const auto offset = static_cast<const uint8_t*>(fault.address) -
                          static_cast<const uint8_t*>(memory_[i]->data());
      std::ostringstream text;
      if (offset >= 0 && offset < static_cast<int64_t>(memory_[i]->nbytes())) {
        text << "writes to " << Name(i);
      } else {
        text << "touches byte " << offset << " of " << Name(i) << ", which has "
             << memory_[i]->nbytes();
      }
      return text.str();
    }
    return "touches memory outside of its tensors";
  }

  void Add(const ffi::Tensor& tensor, std::unique_ptr<FencedMemory> memory) {
    headers_.push_back(*tensor.GetDLTensorPtr());
    headers_.back().data = memory->data();
    headers_.back().byte_offset = 0;
    memory_.push_back(std::move(memory));
  }

  std::string Name(size_t i) const {
    if (i < num_inputs_) return "input " + std::to_string(i);
    return "output " + std::to_string(i - num_inputs_);
  }

  size_t num_inputs_;
  std::vector<std::unique_ptr<FencedMemory>> memory_;
  std::vector<DLTensor> headers_;
  std::vector<ffi::AnyView> packed_;
};

// Runs `kernel` on copies of the inputs. If `shares` is not 0, runs this many shares of the kernel
// one after the other. Returns a description of the kernel's forbidden memory access. If there was
// none, returns an empty string and copies the results to `outputs`.
std::string RunFenced(const ffi::Function& kernel, const ffi::Array<ffi::Tensor>& inputs,
                      const ffi::Array<ffi::Tensor>& outputs, FencedMemory::Place place,
                      uint8_t fill, int64_t shares) {
  FencedArguments arguments(inputs, outputs, place, fill);
  const LoopTeam team(1);  // Loops stay on this thread, because only its faults are caught.
  const auto run = [&] { return RunCatchingFaults([&] { arguments.Call(kernel); }); };
  std::optional<Fault> fault;
  if (shares == 0) fault = run();
  for (int i = 0; i < shares && !fault; ++i) {
    const KernelShare share(i, static_cast<int>(shares));
    fault = run();
  }
  return arguments.Outcome(fault, outputs);
}

// Does the same as `RunFenced` for a kernel of a loaded library, on one thread. `constants` says
// which inputs the kernel may pack once.
std::string RunLibraryFenced(const std::string& name, const Description& description,
                             const ffi::Array<ffi::Tensor>& inputs,
                             const ffi::Array<ffi::Tensor>& outputs,
                             const ffi::Array<bool>& constants, FencedMemory::Place place,
                             uint8_t fill) {
  KernelLibrary* library = FindKernelLibrary(name);
  if (library == nullptr) throw std::runtime_error("kernel library `" + name + "` is not loaded");
  const FencedArguments arguments(inputs, outputs, place, fill);
  const std::vector<void*> addresses = arguments.addresses();
  std::vector<KernelArgument> bound;
  for (size_t i = 0; i < addresses.size(); ++i) {
    bound.push_back({&addresses[i], i < constants.size() && constants[i]});
  }
  const auto kernel = library->Prepare(*ToOpDescription(description), 1, bound);
  kernel->Repack();
  const LoopTeam team(1);
  return arguments.Outcome(RunCatchingFaults([&] { kernel->Run(); }), outputs);
}

FencedMemory::Place PlaceOf(bool before_fence) {
  return before_fence ? FencedMemory::Place::kBeforeFence : FencedMemory::Place::kAfterFence;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  using Tensors = ffi::Array<ffi::Tensor>;
  tvm::ffi::reflection::GlobalDef()
      .def("tvm_interop.runtime.run_fenced",
           [](const ffi::Function& kernel, const Tensors& inputs, const Tensors& outputs,
              bool before_fence, int64_t fill, int64_t shares) {
             return Guarded([&] {
               return RunFenced(kernel, inputs, outputs, PlaceOf(before_fence),
                                static_cast<uint8_t>(fill), shares);
             });
           })
      .def("tvm_interop.runtime.run_library_fenced",
           [](const std::string& library, const Description& description, const Tensors& inputs,
              const Tensors& outputs, const ffi::Array<bool>& constants, bool before_fence,
              int64_t fill) {
             return Guarded([&] {
               return RunLibraryFenced(library, description, inputs, outputs, constants,
                                       PlaceOf(before_fence), static_cast<uint8_t>(fill));
             });
           });
}

}  // namespace
}  // namespace tvm_interop

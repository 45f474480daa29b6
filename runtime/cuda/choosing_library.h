#ifndef RUNTIME_CUDA_CHOOSING_LIBRARY_H_
#define RUNTIME_CUDA_CHOOSING_LIBRARY_H_

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/cuda/api.h"
#include "runtime/cuda/kernel_library.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/nvidia_version.h"
#include "runtime/cuda/streams.h"
#include "runtime/cuda/timing.h"
#include "runtime/cuda/workspace_limit.h"

namespace tvm_interop {

// Remembers the algorithm that was chosen for each operator, on each kind of GPU, under each limit
// of the workspace's size. A choice lasts until the process ends. GPUs of the same kind share a
// choice. Otherwise one operator could give different bits on two such GPUs.
template <typename Choice>
class RememberedChoices {
 public:
  // Returns the choice for an operator on the GPU of `stream`. If no choice has been made yet for
  // an equal operator on the same kind of GPU, calls `choose` to make it.
  template <typename Choose>
  Choice Get(const OpDescription& op, const CudaStream& stream, Choose&& choose) {
    const std::string key = cuda::DescribeDevice(stream.device) + ": " + Describe(op) + " within " +
                            std::to_string(WorkspaceLimit());
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = choices_.find(key);
    if (known != choices_.end()) return known->second;
    return choices_.emplace(key, choose()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Choice> choices_;
};

// The end of an error message about a workspace limit that is too low.
constexpr const char* kRaiseLimit = ": raise the limit with tvm_interop.set_workspace_limit";

// A library whose kernels each run one of several algorithms. The fastest algorithm is chosen.
//
// `Api` holds the library's functions, including `GetVersion`. `LibKernel` is a CudaLibraryKernel
// that is made from an `Api`, an OpDescription and arguments. It has these members:
// - `Choice` is the type of an algorithm, with the fields `workspace_nbytes` and `refused`. The
//   field `refused` names the other algorithms that the library refused to launch, with the
//   reasons.
// - `NameOf(choice)` returns the algorithm's name, for people to read.
// - `Candidates(stream)` returns the algorithms to choose from, with the library's first choice
//   first.
// - `Launch(stream, choice, workspace)` launches the kernel with this algorithm.
// - `Use(choice)` sets the algorithm for later launches.
template <typename Api, typename LibKernel>
class ChoosingLibrary : public CudaKernelLibrary {
 public:
  // `name` is the name under which the library is registered.
  ChoosingLibrary(std::string name, Api api) : name_(std::move(name)), api_(api) {}

  std::string version() const override { return VersionText(api_.GetVersion()); }

  std::unique_ptr<CudaLibraryKernel> Prepare(const OpDescription& op, const CudaStream& stream,
                                             const std::vector<void*>& args) override {
    const std::string why = WhyUnsupportedOnCuda(name_, op);
    if (!why.empty()) throw std::runtime_error(why);
    CheckCudaArguments(op, args);
    const cuda::DeviceGuard guard(stream.device);  // Kernel libraries use the current device.
    auto kernel = std::make_unique<LibKernel>(api_, op, args);
    kernel->Use(chosen_.Get(op, stream, [&] { return Fastest(*kernel, stream); }));
    return kernel;
  }

 private:
  using Choice = typename LibKernel::Choice;

  static Choice Fastest(const LibKernel& kernel, const CudaStream& stream) {
    const std::vector<Choice> candidates = WithinLimit(kernel.Candidates(stream));
    size_t most = 0;
    for (const Choice& candidate : candidates) {
      most = std::max(most, candidate.workspace_nbytes);
    }
    const CudaMemory workspace(stream.device, most);
    const auto fastest = FastestOf(candidates.size(), stream, [&](size_t i) {
      kernel.Launch(stream, candidates[i], workspace.at(0));
    });
    Choice chosen = candidates[fastest.index];
    for (const auto& [i, why] : fastest.refusals) {
      chosen.refused += (chosen.refused.empty() ? "; refused: " : ", ") +
                        kernel.NameOf(candidates[i]) + " (" + why + ")";
    }
    return chosen;
  }

  // Returns the algorithms whose workspaces are not larger than the limit.
  static std::vector<Choice> WithinLimit(const std::vector<Choice>& all) {
    std::vector<Choice> within;
    size_t least = std::numeric_limits<size_t>::max();
    for (const Choice& choice : all) {
      least = std::min(least, choice.workspace_nbytes);
      if (choice.workspace_nbytes <= WorkspaceLimit()) within.push_back(choice);
    }
    if (!within.empty()) return within;
    throw std::runtime_error("its algorithms need a workspace of " + std::to_string(least) +
                             " bytes or more, and " + std::to_string(WorkspaceLimit()) +
                             " are allowed" + kRaiseLimit);
  }

  std::string name_;
  Api api_;
  RememberedChoices<Choice> chosen_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_CHOOSING_LIBRARY_H_

#ifndef RUNTIME_CUDA_CHOICE_H_
#define RUNTIME_CUDA_CHOICE_H_

#include <map>
#include <mutex>
#include <string>

#include "runtime/cuda_api.h"
#include "runtime/cuda_streams.h"
#include "runtime/op_description.h"

namespace tvm_interop {

// What was chosen for each operator on each kind of GPU, for as long as the process lives: equal
// GPUs share a choice, or one operator would give other bits on another of them.
template <typename Choice>
class RememberedChoices {
 public:
  // What `choose` gave the first time for such an operator on such a GPU.
  template <typename Choose>
  Choice Get(const OpDescription& op, const CudaStream& stream, Choose&& choose) {
    const std::string key = cuda::DescribeDevice(stream.device) + ": " + Describe(op);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = choices_.find(key);
    if (known != choices_.end()) return known->second;
    return choices_.emplace(key, choose()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Choice> choices_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_CHOICE_H_

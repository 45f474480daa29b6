#include "runtime/cuda/kernel_library.h"

#include <cstdint>
#include <map>
#include <stdexcept>

#include "runtime/core/library_registry.h"
#include "runtime/cuda/cublaslt/library.h"
#include "runtime/cuda/cudnn/library.h"

namespace tvm_interop {
namespace {

// The alignment of arguments, in bytes. It is the width of the widest vector load.
constexpr uintptr_t kAlignment = 16;

// Returns the registry of kernel libraries for GPUs. Each library has one line in this function and
// one line in `kWhyUnsupported` below.
LibraryRegistry<CudaKernelLibrary>& Registry() {
  static auto* const registry = new LibraryRegistry<CudaKernelLibrary>({
      {"cublaslt", LoadCublasLt},
      {"cudnn", LoadCudnn},
  });
  return *registry;
}

const std::map<std::string, std::string (*)(const OpDescription&)> kWhyUnsupported{
    {"cublaslt", WhyNotForCublasLt},
    {"cudnn", WhyNotForCudnn},
};

}  // namespace

std::string WhyUnsupportedOnCuda(const std::string& name, const OpDescription& op) {
  const auto found = kWhyUnsupported.find(name);
  if (found == kWhyUnsupported.end()) {
    throw std::runtime_error("there is no kernel library `" + name + "`");
  }
  const std::string malformed = WhyMalformed(op);
  if (!malformed.empty()) return malformed;
  if (!op.cut.empty()) {
    return "`" + op.op + "` takes a part of a tensor, which libraries for GPUs do not take";
  }
  for (Layout layout : op.layouts) {
    if (layout != Layout::kPlain) {
      return "`" + op.op + "` has a blocked tensor, which libraries for GPUs do not take";
    }
  }
  if (!op.stored.empty() || op.dtype == DataType::kBfloat16) {
    return "`" + op.op +
           "` has tensors of several types or of bfloat16, which libraries for GPUs do not take";
  }
  const Activation activation = op.ends().activation;
  if (activation != Activation::kNone && activation != Activation::kRelu) {
    return "`" + op.op + "` ends with an activation, and `" + name +
           "` supports no activation but ReLU";
  }
  return found->second(op);
}

CudaKernelLibrary& LoadCudaKernelLibrary(const std::string& name, const std::string& path) {
  return Registry().Load(name, path);
}

CudaKernelLibrary* FindCudaKernelLibrary(const std::string& name) { return Registry().Find(name); }

void CheckCudaArguments(const OpDescription& op, const std::vector<void*>& args) {
  if (args.size() != op.shapes.size()) {
    throw std::runtime_error("`" + op.op + "` was given " + std::to_string(args.size()) +
                             " tensors for " + std::to_string(op.shapes.size()));
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (reinterpret_cast<uintptr_t>(args[i]) % kAlignment != 0) {
      throw std::runtime_error("argument " + std::to_string(i) + " of `" + op.op +
                               "` is not aligned to " + std::to_string(kAlignment) + " bytes");
    }
  }
}

}  // namespace tvm_interop

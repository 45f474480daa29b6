#include "runtime/cuda/module.h"

#include <stdexcept>

namespace tvm_interop {
namespace {

// A kernel that needs more dynamic shared memory than this must ask CUDA for it explicitly.
constexpr unsigned kMostSharedBytes = 48u << 10;

std::string NameOf(int status) {
  const char* name = nullptr;
  const bool is_known =
      cuda::Api::Get().driver.GetErrorName(status, &name) == cuda::kSuccess && name != nullptr;
  return is_known ? name : "error " + std::to_string(status);
}

}  // namespace

CudaModule::~CudaModule() {
  // If CUDA is not usable any more, leave the modules alone. It is unusable after a fork, or after
  // a failure of the GPU.
  if (modules_.empty() || !cuda::IsUsable()) return;
  try {
    for (const auto& [device, module] : modules_) {
      const cuda::DeviceGuard guard(device);
      cuda::Api::Get().driver.ModuleUnload(module);
    }
  } catch (const std::exception&) {
    // An error of unloading is ignored, because nobody could act on it.
  }
}

void CudaModule::Load(int device) {
  const std::lock_guard<std::mutex> lock(loading_);
  Loaded(device);
}

cuda::Module CudaModule::Loaded(int device) {
  cuda::Module& module = modules_[device];
  if (module != nullptr) return module;
  const cuda::DeviceGuard guard(device);
  const int status = cuda::Api::Get().driver.ModuleLoadData(&module, code_.c_str());
  if (status == cuda::kSuccess) return module;
  modules_.erase(device);
  cuda::ThrowFailure(status, "the kernels do not load on " + cuda::DescribeDevice(device) + ": " +
                                 NameOf(status) + "; compile the model for this kind of GPU");
}

cuda::Function CudaModule::Find(int device, const std::string& kernel, unsigned shared_nbytes) {
  const std::lock_guard<std::mutex> lock(loading_);
  cuda::Function& function = functions_[{device, kernel}];
  if (function != nullptr) return function;
  const auto& driver = cuda::Api::Get().driver;
  cuda::Function found = nullptr;
  int status = driver.ModuleGetFunction(&found, Loaded(device), kernel.c_str());
  if (status != cuda::kSuccess) {
    cuda::ThrowFailure(status, "the GPU code has no kernel `" + kernel + "`: " + NameOf(status) +
                                   "; compile the model again");
  }
  if (shared_nbytes > kMostSharedBytes) {
    status = driver.FuncSetAttribute(found, cuda::kMaxDynamicSharedBytes,
                                     static_cast<int>(shared_nbytes));
    if (status != cuda::kSuccess) {
      cuda::ThrowFailure(status, "kernel `" + kernel + "` needs " + std::to_string(shared_nbytes) +
                                     " bytes of shared memory, which the GPU does not give: " +
                                     NameOf(status) + "; compile the model for this kind of GPU");
    }
  }
  function = found;
  return function;
}

void CudaModule::Launch(int device, const std::string& kernel, const cuda::LaunchConfig& config,
                        void** parameters) {
  const cuda::Function function = Find(device, kernel, config.shared_nbytes);
  const int status = cuda::Api::Get().driver.LaunchKernelEx(&config, function, parameters, nullptr);
  if (status == cuda::kSuccess) return;
  cuda::ThrowFailure(status, "kernel `" + kernel + "` cannot be launched: " + NameOf(status) +
                                 "; compile the model for this kind of GPU");
}

}  // namespace tvm_interop

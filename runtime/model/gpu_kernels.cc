#include "runtime/model/gpu_kernels.h"

#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace tvm_interop {
namespace {

constexpr const char* kSetDevice = "__tvm_set_device";

thread_local const CudaStream* current = nullptr;

template <typename Number>
Number NumberIn(const KernelValue& value) {
  Number number;
  std::memcpy(&number, &value.pointer, sizeof(number));
  return number;
}

unsigned Size(const std::string& kernel, const KernelValue& value) {
  const auto size = NumberIn<int64_t>(value);
  if (size >= 0 && size <= std::numeric_limits<int32_t>::max()) return static_cast<unsigned>(size);
  throw std::runtime_error("kernel `" + kernel + "` cannot be launched with " +
                           std::to_string(size) + " blocks or threads");
}

// Runs the body of a function that compiled code calls. No exception may leave such a function.
template <typename Body>
int GuardedForCode(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    RaiseInKernel(error.what());
    return -1;
  }
}

}  // namespace

GpuKernels::OnStream::OnStream(const CudaStream& stream) : before_(current) { current = &stream; }
GpuKernels::OnStream::~OnStream() { current = before_; }

GpuKernels::GpuKernels(std::vector<GpuCode> codes) {
  functions_.push_back({nullptr, kSetDevice, {}});
  for (GpuCode& code : codes) {
    modules_.push_back(std::make_unique<CudaModule>(std::move(code.code)));
    for (auto& [name, kernel] : code.kernels) {
      functions_.push_back({modules_.back().get(), name, std::move(kernel)});
    }
  }
}

void GpuKernels::Load(int device) {
  for (const auto& module : modules_) module->Load(device);
}

int GpuKernels::InitOnce(void** handle, int (*make)(void** made)) {
  // Instances in several threads may make the first call of the same host code at the same time.
  // The lock lets only one of them make the handle.
  static std::mutex making;
  if (__atomic_load_n(handle, __ATOMIC_ACQUIRE) != nullptr) return 0;
  const std::lock_guard<std::mutex> lock(making);
  if (__atomic_load_n(handle, __ATOMIC_RELAXED) != nullptr) return 0;
  void* made = nullptr;
  const int status = make(&made);
  if (status == 0) __atomic_store_n(handle, made, __ATOMIC_RELEASE);
  return status;
}

int GpuKernels::Lookup(void* kernels, const char* name, void** function) {
  return GuardedForCode([&] {
    for (Function& each : static_cast<GpuKernels*>(kernels)->functions_) {
      if (each.name != name) continue;
      *function = &each;
      return;
    }
    throw std::runtime_error("the host's code of the kernels calls `" + std::string(name) +
                             "`, which the kernel library does not have");
  });
}

int GpuKernels::Call(void* function, const KernelValue* args, int32_t num_args,
                     KernelValue* result) {
  *result = {};
  return GuardedForCode([&] {
    const auto& called = *static_cast<const Function*>(function);
    // The executor has made the stream's device current already.
    if (called.module != nullptr) Launch(called, args, num_args);
  });
}

void GpuKernels::Launch(const Function& function, const KernelValue* args, int32_t num_args) {
  const GpuKernel& kernel = function.kernel;
  const size_t count = kernel.parameters.size();
  const size_t wanted = count + kernel.dimensions.size() + (kernel.has_shared_bytes ? 1 : 0);
  if (static_cast<size_t>(num_args) != wanted) {
    throw std::runtime_error("kernel `" + function.name + "` was given " +
                             std::to_string(num_args) + " arguments and takes " +
                             std::to_string(wanted));
  }
  if (current == nullptr)
    throw std::runtime_error("a kernel for a GPU was called without a stream");
  std::vector<KernelValue> values(args, args + count);
  std::vector<void*> parameters(count);
  for (size_t i = 0; i < count; ++i) {
    void* const place = &values[i].pointer;
    if (kernel.parameters[i] == GpuKernel::Parameter::kInt32) {
      const auto number = static_cast<int32_t>(NumberIn<int64_t>(args[i]));
      std::memcpy(place, &number, sizeof(number));
    } else if (kernel.parameters[i] == GpuKernel::Parameter::kFloat32) {
      const auto number = static_cast<float>(NumberIn<double>(args[i]));
      std::memcpy(place, &number, sizeof(number));
    }
    parameters[i] = place;
  }
  cuda::LaunchConfig config;
  config.stream = current->handle;
  for (size_t i = 0; i < kernel.dimensions.size(); ++i) {
    const unsigned size = Size(function.name, args[count + i]);
    const int dimension = kernel.dimensions[i];
    // For a tensor without elements, the size of the launch would be 0, which CUDA refuses. So use
    // 1.
    if (size > 0) (dimension < 3 ? config.grid[dimension] : config.block[dimension - 3]) = size;
  }
  if (kernel.has_shared_bytes) {
    config.shared_nbytes = Size(function.name, args[wanted - 1]);
  }
  function.module->Launch(current->device, function.name, config, parameters.data());
}

}  // namespace tvm_interop

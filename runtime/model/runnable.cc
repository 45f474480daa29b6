#include "runtime/model/runnable.h"

#include <utility>

#include "runtime/model/error.h"
#include "runtime/model/gpu_instance.h"
#include "runtime/model/instance.h"

namespace tvm_interop {

Runnable::BusyGuard::BusyGuard(Runnable* instance) : busy_(instance->busy_) {
  // In a forked child, `busy_` may still say that a thread of the parent runs the instance. Ignore
  // this, because the thread stayed in the parent.
  const int ours = 1 + ForkGeneration();
  int before = busy_.load(std::memory_order_relaxed);
  if (before == ours || !busy_.compare_exchange_strong(before, ours, std::memory_order_acquire)) {
    throw ModelError(ErrorCode::kExecution,
                     "another thread is running this instance; make an instance for each thread");
  }
}

std::unique_ptr<Runnable> MakeInstance(std::shared_ptr<Model> model, size_t shape,
                                       std::shared_ptr<ThreadPool> guests) {
  if (model->plan(shape).Gpu().has_value()) {
    return std::make_unique<GpuInstance>(std::move(model), shape);
  }
  return std::make_unique<Instance>(std::move(model), shape, std::move(guests));
}

}  // namespace tvm_interop

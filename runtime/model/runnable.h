#ifndef RUNTIME_MODEL_RUNNABLE_H_
#define RUNTIME_MODEL_RUNNABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/op_timing.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/model/model.h"

namespace tvm_interop {

// One executable copy of a model, for one shape of its inputs: its own tensors in memory, and the
// kernels bound to them. There is a class for CPUs and one for a GPU. Only one thread at a time may
// use an instance.
class Runnable {
 public:
  virtual ~Runnable() = default;

  // Runs the model once.
  //
  // `inputs` and `outputs` have an address for each input and output of the model, in its order.
  // For a null address, the instance's own buffer is used. If `inputs` or `outputs` itself is null,
  // all its addresses count as null.
  //
  // Throws ModelError with `kExecution` if an operator fails, or if another thread is running this
  // instance.
  virtual void Run(const void* const* inputs, void* const* outputs) = 0;

  // Runs the model once, as `Run` does, on inputs and outputs with `rows` rows, one number for each
  // range of the model. Each number is at least the smallest number of its range, and at most the
  // number of the instance's shape. If there are fewer rows than in the instance's shape, inputs
  // are padded with copies of their last row, and masks with 0. In this case, tensors with rows are
  // always copied. The instance's own buffers hold the given rows at their beginning.
  //
  // Throws ModelError with `kInvalidArgument` if the numbers of rows do not fit the model's ranges,
  // or if a mask has a number outside of 0 to 1, or is not 1 at the required position.
  virtual void RunRows(const std::vector<int64_t>& rows, const void* const* inputs,
                       void* const* outputs) = 0;

  // Runs the model once, as `Run` does, and returns when each operator began and ended.
  virtual std::vector<OpTiming> Profile(const void* const* inputs, void* const* outputs) = 0;

  // The instance's own buffers, whose addresses do not change.
  virtual void* InputBuffer(size_t index) = 0;
  virtual void* OutputBuffer(size_t index) = 0;

  virtual const Plan& plan() const = 0;

  // A warning about the way in which this instance runs. Empty if there is none.
  virtual std::string Warning() const { return ""; }

 protected:
  // Marks the instance as busy while this object lives. Throws ModelError if it is busy.
  class BusyGuard {
   public:
    explicit BusyGuard(Runnable* instance);
    ~BusyGuard() { busy_.store(0, std::memory_order_release); }
    BusyGuard(const BusyGuard&) = delete;
    BusyGuard& operator=(const BusyGuard&) = delete;

   private:
    std::atomic<int>& busy_;
  };

 private:
  // 0 while no thread uses this instance. Otherwise 1 plus the `ForkGeneration` of the process
  // whose thread uses it.
  std::atomic<int> busy_{0};
};

// Makes an instance of the class that fits the model's device. `guests` is the pool of threads to
// run in; null means the pool of the process. Throws ModelError or std::bad_alloc.
std::unique_ptr<Runnable> MakeInstance(std::shared_ptr<Model> model, size_t shape,
                                       std::shared_ptr<ThreadPool> guests = nullptr);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_RUNNABLE_H_

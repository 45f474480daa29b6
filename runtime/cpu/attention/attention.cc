#include "runtime/cpu/attention/attention.h"

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "runtime/cpu/attention/kernels.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/vectors/detect.h"

namespace tvm_interop {
namespace attention {
namespace {

// Each thread gets up to this many tasks, so that threads of unequal speed end at the same time.
constexpr int64_t kTasksPerThread = 4;
// The least number of rows of a task, unless the head has fewer. Each task packs the keys of a head
// again, so small tasks would be slow.
constexpr int64_t kFewestRows = 64;
// A task has at least this many floating-point operations. A smaller task would take less time than
// waking a thread.
constexpr double kFewestFlops = 1e6;
// The number of operations that the softmax takes for each score. It is an estimate, for dividing
// the work into tasks.
constexpr int64_t kSoftmaxFlops = 32;

const Kernels* BestKernels() {
  if (HasAvx512()) return Avx512Kernels();
  return HasAvx2() ? Avx2Kernels() : nullptr;
}

class AttentionKernel : public LibraryKernel {
 public:
  AttentionKernel(const Attention& op, int threads, const std::vector<KernelArgument>& args)
      : kernels_(*BestKernels()), threads_(threads), args_(args) {
    const std::vector<int64_t>&queries = op.shapes[0], &values = op.shapes[2];
    const size_t axes = queries.size();
    sizes_.queries = queries[axes - 2];
    sizes_.depth = queries[axes - 1];
    sizes_.positions = values[axes - 2];
    sizes_.width = values[axes - 1];
    sizes_.keys_by_position = op.keys_by_position;
    sizes_.scale = op.scale;
    sizes_.rows = RowsAtOnce(kernels_, sizes_);
    heads_.assign(queries.begin(), queries.end() - 2);
    for (int64_t size : heads_) num_heads_ *= size;
    if (op.has_mask) SetMask(op.shapes[3]);
    SetTasks();
    const int64_t numbers = PackedSize(kernels_, sizes_) + ScratchSize(kernels_, sizes_);
    scratch_.Set(static_cast<size_t>(numbers) * sizeof(float));
  }

  void Run() override {
    const int failed = tasks_ == 1 ? Task(0, 1, this) : RunParallelLoop(Task, this, tasks_);
    if (failed != 0) throw std::runtime_error("attention: out of memory");
  }

  void Repack() override {}
  std::string implementation() const override {
    return kernels_.lanes == 16 ? "attention:avx512" : "attention:avx2";
  }
  int num_reorders() const override { return 0; }

 private:
  // Divides the rows of each head into parts, and the parts of all heads into tasks.
  void SetTasks() {
    if (threads_ <= 1) return;
    const double for_score = 2.0 * (sizes_.depth + sizes_.width) + kSoftmaxFlops;
    const double flops = for_score * num_heads_ * sizes_.queries * sizes_.positions;
    const int64_t wanted = std::min<int64_t>(flops / kFewestFlops, kTasksPerThread * threads_);
    const int64_t most = std::max<int64_t>(sizes_.queries / kFewestRows, 1);
    parts_ = std::clamp<int64_t>((wanted + num_heads_ - 1) / num_heads_, 1, most);
    tasks_ = static_cast<int>(std::clamp<int64_t>(wanted, 1, num_heads_ * parts_));
  }

  void SetMask(const std::vector<int64_t>& mask) {
    const size_t axes = mask.size();
    has_mask_ = true;
    mask_column_ = mask[axes - 1] > 1 ? 1 : 0;
    mask_row_ = mask[axes - 2] > 1 ? mask[axes - 1] : 0;
    int64_t step = mask[axes - 1] * mask[axes - 2];
    mask_steps_.resize(heads_.size());
    for (size_t axis = heads_.size(); axis-- > 0;) {
      mask_steps_[axis] = mask[axis] > 1 ? step : 0;
      step *= mask[axis];
    }
  }

  Head HeadAt(int64_t number) const {
    Head head;
    head.queries = FloatsOf(args_[0]) + number * sizes_.queries * sizes_.depth;
    head.keys = FloatsOf(args_[1]) + number * sizes_.positions * sizes_.depth;
    head.values = FloatsOf(args_[2]) + number * sizes_.positions * sizes_.width;
    head.result = FloatsOf(args_[args_.size() - 1]) + number * sizes_.queries * sizes_.width;
    if (!has_mask_) return head;
    head.mask = FloatsOf(args_[3]);
    head.mask_row = mask_row_;
    head.mask_column = mask_column_;
    for (size_t axis = heads_.size(); axis-- > 0; number /= heads_[axis]) {
      head.mask += number % heads_[axis] * mask_steps_[axis];
    }
    return head;
  }

  // Computes the parts (some rows of a head each) that belong to one task.
  static int Task(int task, int tasks, void* data) {
    const AttentionKernel& self = *static_cast<AttentionKernel*>(data);
    const Sizes& sizes = self.sizes_;
    const int64_t parts = self.parts_, all = self.num_heads_ * parts;
    try {
      const ScratchLease lease(self.scratch_);  // Each task has its own.
      float* packed = reinterpret_cast<float*>(lease.data());
      float* scratch = packed + PackedSize(self.kernels_, sizes);
      int64_t number = -1;
      Head head;
      for (int64_t i = all * task / tasks; i < all * (task + 1) / tasks; ++i) {
        if (i / parts != number) {
          number = i / parts;
          head = self.HeadAt(number);
          self.kernels_.pack(sizes, head, packed);
        }
        self.kernels_.compute(sizes, head, packed, sizes.queries * (i % parts) / parts,
                              sizes.queries * (i % parts + 1) / parts, scratch);
      }
    } catch (const std::exception&) {
      return 1;
    }
    return 0;
  }

  const Kernels& kernels_;
  const int threads_;
  const std::vector<KernelArgument> args_;
  Sizes sizes_;
  std::vector<int64_t> heads_;  // The sizes of the axes before the last two.
  int64_t num_heads_ = 1;
  int64_t parts_ = 1;  // Of each head's rows.
  int tasks_ = 1;
  bool has_mask_ = false;
  std::vector<int64_t> mask_steps_;  // Numbers from one head's mask to the next, for each axis.
  int64_t mask_row_ = 0;
  int64_t mask_column_ = 0;
  ScratchNeed scratch_;  // For one task.
};

}  // namespace

std::string WhyNot(const OpDescription& op) {
  if (!op.is_float32()) return "is not of float32";
  if (std::any_of(op.layouts.begin(), op.layouts.end(),
                  [](Layout layout) { return layout != Layout::kPlain; })) {
    return "has a tensor that is not plain";
  }
  if (BestKernels() == nullptr) return "needs a CPU with AVX2 and FMA";
  return "";
}

std::unique_ptr<LibraryKernel> MakeAttention(const Attention& op, int threads,
                                             const std::vector<KernelArgument>& args) {
  return std::make_unique<AttentionKernel>(op, threads, args);
}

}  // namespace attention
}  // namespace tvm_interop

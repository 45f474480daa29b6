#include "runtime/cpu/rows/product.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "runtime/core/shapes.h"
#include "runtime/cpu/kernel_share.h"
#include "runtime/cpu/packed_weight.h"
#include "runtime/cpu/parallel_loop.h"
#include "runtime/cpu/rows/kernels.h"
#include "runtime/cpu/vectors/detect.h"
#include "runtime/cpu/vectors/last_of.h"

namespace tvm_interop {
namespace rows {
namespace {

Compute BestCompute() {
  if (HasAvx512()) return Avx512Compute();
  return HasAvx2() ? Avx2Compute() : nullptr;
}

class ProductKernel : public LibraryKernel {
 public:
  ProductKernel(const RowMatmul& op, int threads, const std::vector<KernelArgument>& args)
      : compute_(BestCompute()), threads_(threads), ending_(op.ending), args_(args) {
    product_.terms = op.shapes[1][0];
    product_.rows = NumElements(op.shapes[0]) / product_.terms;
    product_.columns = op.shapes[1][1];
    product_.last = LastOf(op.ending.activation);
    product_.clip_low = op.ending.clip_low;
    product_.clip_high = op.ending.clip_high;
    first_column_ = op.is_cut(1) ? op.cut[2] : 0;
    columns_of_whole_ = op.is_cut(1) ? op.cut[3] : product_.columns;
    packed_bytes_ =
        static_cast<size_t>((product_.columns + kStep - 1) / kStep * kStep * product_.terms) *
        sizeof(float);
  }

  void Run() override {
    if (!args_[1].is_constant) Repack();
    const size_t last = args_.size() - 1;
    product_.left = FloatsOf(args_[0]);
    product_.packed = packed_.data();
    if (ending_.has_bias) product_.bias = FloatsOf(args_[2]);
    if (ending_.has_sum) product_.addend = FloatsOf(args_[last - 1]);
    product_.result = FloatsOf(args_[last]);
    const int tasks = static_cast<int>(std::min<int64_t>(groups(), std::max(threads_, 1)));
    const KernelShare::Number share = KernelShare::Current();
    if (share.count > 0) {
      Task(share.index, share.count, this);
    } else if (tasks == 1) {
      compute_(product_, 0, groups());
    } else {
      RunParallelLoop(Task, this, tasks);
    }
  }

  void Repack() override {
    packed_.Update(args_[1],
                   static_cast<size_t>(product_.terms * columns_of_whole_) * sizeof(float),
                   Form{product_.terms, columns_of_whole_, first_column_, product_.columns},
                   packed_bytes_, [&](const float* matrix, float* to) { Pack(matrix, to); });
  }

  std::string implementation() const override { return HasAvx512() ? "rows:avx512" : "rows:avx2"; }
  int num_reorders() const override { return 0; }

 private:
  // How the matrix is packed: its rows, its columns, the first column that is packed, and the
  // number of columns that are packed.
  using Form = std::tuple<int64_t, int64_t, int64_t, int64_t>;

  int64_t groups() const { return (product_.columns + kColumns - 1) / kColumns; }

  // Writes the columns in the order that `kColumns` describes, to memory that is zero at first.
  void Pack(const float* matrix, float* to) const {
    for (int64_t first = 0; first < product_.columns; first += kColumns) {
      const int64_t there = std::min(product_.columns - first, kColumns);
      const int64_t padded = (there + kStep - 1) / kStep * kStep;
      const float* from = matrix + first_column_ + first;
      for (int64_t t = 0; t < product_.terms; ++t) {
        std::memcpy(to, from, static_cast<size_t>(there) * sizeof(float));
        from += columns_of_whole_;
        to += padded;
      }
    }
  }

  // Computes the groups of columns that belong to task `task`.
  static int Task(int task, int tasks, void* data) {
    const ProductKernel& self = *static_cast<ProductKernel*>(data);
    const int64_t groups = self.groups();
    self.compute_(self.product_, groups * task / tasks, groups * (task + 1) / tasks);
    return 0;
  }

  const Compute compute_;
  const int threads_;
  const Ending ending_;
  const std::vector<KernelArgument> args_;
  Product product_;
  int64_t first_column_ = 0;      // The position of the first column in a larger matrix.
  int64_t columns_of_whole_ = 0;  // The number of columns of that matrix.
  size_t packed_bytes_ = 0;
  PackedWeight<Form> packed_;
};

}  // namespace

std::string WhyNot(const OpDescription& op) {
  if (!op.is_float32()) return "is not of float32";
  if (NumElements(op.shapes[0]) / op.shapes[0].back() > kMostRows) return "has too many rows";
  const std::string wrong_end = WhyNotLast(op.ends().activation);
  if (!wrong_end.empty()) return wrong_end;
  return BestCompute() == nullptr ? "needs a CPU with AVX2 and FMA" : "";
}

std::unique_ptr<LibraryKernel> MakeProduct(const RowMatmul& op, int threads,
                                           const std::vector<KernelArgument>& args) {
  return std::make_unique<ProductKernel>(op, threads, args);
}

}  // namespace rows
}  // namespace tvm_interop

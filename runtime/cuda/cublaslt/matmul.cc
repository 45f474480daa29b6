#include "runtime/core/operators/matmul.h"

#include <array>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "runtime/core/owned.h"
#include "runtime/cuda/choosing_library.h"
#include "runtime/cuda/cublaslt/api.h"
#include "runtime/cuda/cublaslt/library.h"

namespace tvm_interop {
namespace {

using namespace cublaslt;  // NOLINT: this file is about nothing else.

// The largest number of algorithms to choose from.
constexpr int kMostCandidates = 16;
// The alignment of the address of every matrix, in bytes. `CheckCudaArguments` has checked it.
constexpr uint32_t kAlignment = 16;

void Check(const Api& api, int status, const char* call) {
  if (status == kSuccess) return;
  throw std::runtime_error(std::string("`") + call + "` failed: " + api.GetStatusString(status));
}
#define TVM_INTEROP_CUBLASLT(api, function, ...) \
  Check(api, (api).function(__VA_ARGS__), "cublasLt" #function)

// An algorithm of cuBLASLt for one matrix product.
struct RankedAlgorithm {
  Algorithm algorithm = {};
  size_t workspace_nbytes = 0;
  int rank = 0;  // The algorithm's position in cuBLASLt's own order.
  std::string refused = "";
};

// The sizes of a product of row-major matrices, or of a batch of such products.
struct Sizes {
  explicit Sizes(const OpDescription& op) {
    const std::vector<int64_t>& left = op.shapes[0];
    const std::vector<int64_t>& right = op.shapes[1];
    k = left.back();
    n = right.back();
    const int64_t rows =
        std::accumulate(left.begin(), left.end() - 1, int64_t{1}, std::multiplies<int64_t>());
    // If all products of the batch have the same right matrix, the whole batch is computed as one
    // tall product.
    batch = right.size() == 2 ? 1 : rows / left[left.size() - 2];
    m = rows / batch;
  }
  int64_t m, n, k, batch;
};

// The descriptors of a product. Our matrices are row-major, and cuBLASLt's matrices are
// column-major. So cuBLASLt reads each of our matrices as its transpose. To get left * right in our
// form, we let cuBLASLt multiply these transposes in the order right * left. The bias has one
// number for each row of cuBLASLt's result.
class Descs {
 public:
  Descs(const Api& api, const Matmul& op, const void* bias)
      : api_(api), data_type_(op.dtype == DataType::kFloat16 ? cublaslt::kHalf : cublaslt::kFloat) {
    const Sizes sizes(op);
    left = Layout(sizes.k, sizes.m, sizes.batch);
    right = Layout(sizes.n, sizes.k, sizes.batch);
    output = Layout(sizes.n, sizes.m, sizes.batch);

    const bool may_round = op.allow_tf32 && op.dtype == DataType::kFloat32;
    MatmulDesc made = nullptr;
    TVM_INTEROP_CUBLASLT(api_, MatmulDescCreate, &made, may_round ? kCompute32FastTf32 : kCompute32,
                         cublaslt::kFloat);
    product = {made, api_.MatmulDescDestroy};
    const bool is_relu = op.ending.activation == Activation::kRelu;
    uint32_t epilogue = is_relu ? cublaslt::kRelu : kNothing;
    if (op.ending.has_bias) {
      epilogue = is_relu ? kReluBias : kBias;
      TVM_INTEROP_CUBLASLT(api_, MatmulDescSetAttribute, made, kBiasPointer, &bias, sizeof(bias));
    }
    TVM_INTEROP_CUBLASLT(api_, MatmulDescSetAttribute, made, kEpilogue, &epilogue,
                         sizeof(epilogue));
  }

  Owned<MatmulDesc> product;
  Owned<MatrixLayout> left, right, output;

 private:
  Owned<MatrixLayout> Layout(int64_t rows, int64_t columns, int64_t batch) const {
    MatrixLayout layout = nullptr;
    TVM_INTEROP_CUBLASLT(api_, MatrixLayoutCreate, &layout, data_type_, static_cast<uint64_t>(rows),
                         static_cast<uint64_t>(columns), rows);
    Owned<MatrixLayout> owned{layout, api_.MatrixLayoutDestroy};
    if (batch > 1) {
      const auto number = static_cast<int32_t>(batch);
      const int64_t offset = rows * columns;
      TVM_INTEROP_CUBLASLT(api_, MatrixLayoutSetAttribute, layout, kBatchCount, &number,
                           sizeof(number));
      TVM_INTEROP_CUBLASLT(api_, MatrixLayoutSetAttribute, layout, kStridedBatchOffset, &offset,
                           sizeof(offset));
    }
    return owned;
  }

  const Api& api_;
  MatrixType data_type_;
};

// One matrix product of a model. `Use` sets the algorithm that has been chosen.
class CublasLtMatmul : public CudaLibraryKernel {
 public:
  using Choice = RankedAlgorithm;

  CublasLtMatmul(const Api& api, const OpDescription& op, const std::vector<void*>& args)
      : CublasLtMatmul(api, dynamic_cast<const Matmul&>(op), args) {}

  CublasLtMatmul(const Api& api, const Matmul& op, const std::vector<void*>& args)
      : api_(api),
        descs_(api, op, op.ending.has_bias ? args[2] : nullptr),
        left_(args[0]),
        right_(args[1]),
        sum_(op.ending.has_sum ? args[args.size() - 2] : nullptr),
        output_(args.back()) {}

  // Returns the algorithms to choose from, in cuBLASLt's own order.
  std::vector<Choice> Candidates(const CudaStream& stream) const {
    Preference made = nullptr;
    TVM_INTEROP_CUBLASLT(api_, MatmulPreferenceCreate, &made);
    const Owned<Preference> preference{made, api_.MatmulPreferenceDestroy};
    Prefer(made, kMostWorkspaceBytes, WorkspaceLimit());
    // `kInComputeType` excludes algorithms that add up parts in a varying order, and algorithms
    // that round intermediate sums.
    Prefer(made, kReductionSchemes, uint32_t{kInComputeType});
    for (PreferenceAttribute matrix : {kAlignmentA, kAlignmentB, kAlignmentC, kAlignmentD}) {
      Prefer(made, matrix, kAlignment);
    }
    std::array<HeuristicResult, kMostCandidates> results;
    int number = 0;
    TVM_INTEROP_CUBLASLT(api_, MatmulAlgoGetHeuristic, HandleOf(stream), descs_.product.get(),
                         descs_.right.get(), descs_.left.get(), descs_.output.get(),
                         descs_.output.get(), made, kMostCandidates, results.data(), &number);
    std::vector<Choice> candidates;
    for (int i = 0; i < number; ++i) {
      if (results[i].status != kSuccess) continue;
      candidates.push_back({results[i].algorithm, results[i].workspace_nbytes, i});
    }
    if (candidates.empty()) {
      throw std::runtime_error(
          "cuBLASLt has no algorithm for this product that always gives the same bits with a "
          "workspace of at most " +
          std::to_string(WorkspaceLimit()) + " bytes" + kRaiseLimit);
    }
    return candidates;
  }

  void Use(const Choice& choice) { choice_ = choice; }

  void Launch(const CudaStream& stream) override {
    Launch(stream, choice_, stream.resources->Workspace(choice_.workspace_nbytes));
  }

  // Launches the product with the given algorithm and workspace.
  void Launch(const CudaStream& stream, const Choice& choice, void* workspace) const {
    const cuda::DeviceGuard guard(stream.device);
    MatrixLayout output = descs_.output.get();
    // cuBLASLt always wants a matrix to add. If the operator adds no tensor, cuBLASLt gets the
    // output with a factor of zero.
    TVM_INTEROP_CUBLASLT(api_, Matmul, HandleOf(stream), descs_.product.get(), &kOne, right_,
                         descs_.right.get(), left_, descs_.left.get(),
                         sum_ != nullptr ? &kOne : &kZero, sum_ != nullptr ? sum_ : output_, output,
                         output_, output, &choice.algorithm, workspace, choice.workspace_nbytes,
                         stream.handle);
  }

  size_t workspace_nbytes() const override { return choice_.workspace_nbytes; }

  std::string implementation() const override { return NameOf(choice_) + choice_.refused; }

  std::string NameOf(const Choice& choice) const {
    return "number " + std::to_string(choice.rank) + " of cuBLASLt's choice";
  }

 private:
  struct StreamHandle {
    StreamHandle(const Api& api, const CudaStream& stream) {
      const cuda::DeviceGuard guard(stream.device);
      Handle handle = nullptr;
      TVM_INTEROP_CUBLASLT(api, Create, &handle);
      owned = {handle, api.Destroy};
    }
    Owned<Handle> owned;
  };

  Handle HandleOf(const CudaStream& stream) const {
    const auto make = [&] { return std::make_shared<StreamHandle>(api_, stream); };
    return stream.resources->Handle(&api_, make).owned.get();
  }

  template <typename Value>
  void Prefer(Preference preference, PreferenceAttribute attribute, Value value) const {
    TVM_INTEROP_CUBLASLT(api_, MatmulPreferenceSetAttribute, preference, attribute, &value,
                         sizeof(value));
  }

  // cuBLASLt multiplies the product and the added matrix by factors. It takes these factors in
  // float32, even for float16 matrices.
  static constexpr float kOne = 1;
  static constexpr float kZero = 0;

  const Api& api_;
  Descs descs_;
  const void* left_;
  const void* right_;
  const void* sum_;  // Null if no tensor is added.
  void* output_;
  Choice choice_;
};

}  // namespace

std::unique_ptr<CudaKernelLibrary> LoadCublasLt(const std::string& path) {
  return std::make_unique<ChoosingLibrary<cublaslt::Api, CublasLtMatmul>>(
      "cublaslt", cublaslt::Api::Load(path));
}

std::string WhyNotForCublasLt(const OpDescription& op) {
  const bool is_product = dynamic_cast<const Matmul*>(&op) != nullptr;
  return is_product ? "" : "`cublaslt` computes matrix products here, no `" + op.op + "`";
}

}  // namespace tvm_interop

#include "runtime/core/operators/matmul.h"

#include <string>
#include <utility>
#include <vector>

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

// The distance between rows of the right matrix should not be a multiple of this many bytes. With
// such a distance, all elements of a column share a few sets of the cache. On CPUs without AVX-512,
// oneDNN uses its `gemm`, which reads the right matrix along columns, and then takes up to twice as
// long.
constexpr int64_t kCollidingBytes = 2048;
// If the distance between rows of the right matrix is a multiple of `kCollidingBytes`, the distance
// is increased by this number of elements, which is a cache line of 64 bytes.
constexpr int64_t kRowPadding = 16;

class MatmulMaker : public MakerOf<Matmul> {
 public:
  using MakerOf::MakerOf;
  void Make() override;

 private:
  bool RowsCollide(const Shape& right, PrimitiveDesc product) const {
    return Factors() == kFloat32 && right[1] * int64_t{sizeof(float)} % kCollidingBytes == 0 &&
           Implementation(product).rfind("gemm:", 0) == 0;
  }
};

void MatmulMaker::Make() {
  const Shape& left = op_.shapes[0];
  const Shape& right = op_.shapes[1];
  // If all left matrices are multiplied by the same right matrix, they are treated as one tall
  // matrix.
  const bool flat = right.size() == 2;
  const Shape source{Product(left) / left.back(), left.back()};
  const Shape result{source[0], right.back()};
  const Shape& source_shape = flat ? source : left;
  const Shape& result_shape = flat ? result : op_.shapes.back();
  Shape bias_shape(result_shape.size(), 1);
  bias_shape.back() = right.back();
  const auto source_desc = descs_.Plain(source_shape, Factors());
  const auto result_desc = descs_.Plain(result_shape, Computed(last()));
  const auto weights = args_[1].is_constant ? descs_.Any(right, Factors()) : GivenRight(Factors());
  const auto bias = BiasDesc(bias_shape);
  const auto addend = descs_.Plain(result_shape, Computed(last() - 1));
  const auto attributes = MakeAttributes(api_, kind_.ending, {}, Addends(addend));
  const auto product = [&](const MemoryDescObject* right_desc) {
    PrimitiveDesc made = nullptr;
    Check(api_.matmul_primitive_desc_create(&made, engine_, source_desc.get(), right_desc,
                                            bias.get(), result_desc.get(), attributes.get()),
          "a matrix product");
    return Owned<PrimitiveDesc>(made, api_.primitive_desc_destroy);
  };
  Owned<PrimitiveDesc> desc = product(weights.get());
  if (args_[1].is_constant && flat && source[0] > 1 && RowsCollide(right, desc.get())) {
    desc = product(descs_.Strided(right, Factors(), {right[1] + kRowPadding, 1}).get());
  }
  const auto given_left = descs_.Plain(source_shape, Stored(0));
  const int left_tensor = kernel_->AddInput(args_[0], given_left.get(), source_desc.get());
  const auto given_right = GivenRight(Stored(1));
  const int right_tensor =
      kernel_->AddInput(Argument(1), given_right.get(), Wanted(desc.get(), kWeightsDesc));
  std::vector<std::pair<int, int>> tensors{{kSource, left_tensor}, {kWeights, right_tensor}};
  AddBias(bias.get(), &tensors);
  if (kind_.ending.has_sum) {
    const auto given = descs_.Plain(result_shape, Stored(last() - 1));
    tensors.emplace_back(PostOp(0) | kAddend,
                         kernel_->AddInput(args_[last() - 1], given.get(), addend.get()));
  }
  AddResultAndCall(desc.get(), descs_.Plain(result_shape, Stored(last())), std::move(tensors));
}

std::string WhyNot(const OpDescription& op) {
  return WhyNotFloats(op, Multiplies::kYes,
                      op.ends().has_bias ? std::vector<size_t>{2} : std::vector<size_t>{});
}

const RegisteredMaker<MatmulMaker> kRegistered("matmul", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

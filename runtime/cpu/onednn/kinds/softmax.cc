#include "runtime/core/operators/softmax.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/cpu/onednn/kind_function.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

TVM_INTEROP_ONEDNN_NUMBER(kAccurate, 0x30000, softmax_accurate)
TVM_INTEROP_ONEDNN_FUNCTION(int, softmax_forward_primitive_desc_create,
                            (PrimitiveDesc*, Engine, int prop_kind, int algorithm,
                             const MemoryDescObject* source, const MemoryDescObject* destination,
                             int axis, Attributes))

// How the bits of a number tell whether the number is NaN or positive.
struct Float32 {
  using Bits = uint32_t;
  static constexpr Bits kInfinity = 0x7f800000, kNan = 0x7fc00000, kMagnitude = 0x7fffffff;
};
struct Bfloat16 {
  using Bits = uint16_t;
  static constexpr Bits kInfinity = 0x7f80, kNan = 0x7fc0, kMagnitude = 0x7fff;
};

// Fills each row that has a NaN with NaN.
//
// Each result is a quotient whose divisor is the sum of the row. So a row of results with a NaN has
// only NaN and 0. If the first number of a row is neither NaN nor 0, the row has no NaN, and is not
// read further.
template <typename Type>
void SpreadNan(typename Type::Bits* data, int64_t rows, int64_t columns) {
  using Bits = typename Type::Bits;
  const auto magnitude = [](Bits bits) { return static_cast<Bits>(bits & Type::kMagnitude); };
  for (int64_t row = 0; row < rows; ++row, data += columns) {
    const Bits first = magnitude(data[0]);
    if (first != 0 && first <= Type::kInfinity) continue;
    Bits largest = 0;
    for (int64_t i = 0; i < columns; ++i) largest = std::max(largest, magnitude(data[i]));
    if (largest > Type::kInfinity) std::fill(data, data + columns, Type::kNan);
  }
}

// Runs a softmax of oneDNN, and then sets whole rows to NaN.
//
// If a number of a row is NaN or positive infinity, then the row's sum is NaN, and so is each
// quotient of a number and the sum. oneDNN returns NaN only for this number, and 0 for the others.
class SoftmaxKernel : public LibraryKernel {
 public:
  SoftmaxKernel(std::unique_ptr<LibraryKernel> kernel, const KernelArgument& result, bool is_narrow,
                int64_t rows, int64_t columns)
      : kernel_(std::move(kernel)),
        result_(result),
        is_narrow_(is_narrow),
        rows_(rows),
        columns_(columns) {}

  void Run() override {
    kernel_->Run();
    char* const data = BytesOf(result_);
    if (is_narrow_) {
      SpreadNan<Bfloat16>(reinterpret_cast<uint16_t*>(data), rows_, columns_);
    } else {
      SpreadNan<Float32>(reinterpret_cast<uint32_t*>(data), rows_, columns_);
    }
  }
  void Repack() override { kernel_->Repack(); }
  std::string implementation() const override { return kernel_->implementation(); }
  int num_reorders() const override { return kernel_->num_reorders(); }

 private:
  std::unique_ptr<LibraryKernel> kernel_;
  KernelArgument result_;
  const bool is_narrow_;  // Whether the result is stored as bfloat16.
  int64_t rows_, columns_;
};

class SoftmaxMaker : public MakerOf<Softmax> {
 public:
  using MakerOf::MakerOf;
  void Make() override;
  std::unique_ptr<LibraryKernel> Take() override;
};

void SoftmaxMaker::Make() {
  const auto data = descs_.Plain(op_.shapes[0], Stored(0));
  // The primitive writes float32. If it wrote bfloat16, oneDNN would round the numbers that it adds
  // up, and round the result once more at the end.
  const auto result = descs_.Plain(op_.shapes[0], kFloat32);
  const auto attributes = MakeAttributes(api_, kind_.ends(), {}, {});
  PrimitiveDesc made = nullptr;
  Check(softmax_forward_primitive_desc_create(
            api_, &made, engine_, kForwardInference, kAccurate, data.get(), result.get(),
            static_cast<int>(op_.shapes[0].size()) - 1, attributes.get()),
        "a softmax");
  const Owned<PrimitiveDesc> desc(made, api_.primitive_desc_destroy);
  BindUnary(made, data.get());
}

std::unique_ptr<LibraryKernel> SoftmaxMaker::Take() {
  const int64_t columns = op_.shapes[0].back();
  const int64_t rows = columns > 0 ? Product(op_.shapes[0]) / columns : 0;
  return std::make_unique<SoftmaxKernel>(Maker::Take(), args_[last()], Stored(last()) == kBfloat16,
                                         rows, columns);
}

std::string WhyNot(const OpDescription& op) { return WhyNotFloats(op, Multiplies::kNo, {}); }

const RegisteredMaker<SoftmaxMaker> kRegistered("softmax", WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop

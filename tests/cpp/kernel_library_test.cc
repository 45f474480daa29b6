#include "runtime/cpu/kernel_library.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/core/operators/conv2d.h"
#include "runtime/core/operators/matmul.h"
#include "runtime/core/operators/max_pool2d.h"
#include "runtime/cpu/executor.h"
#include "tests/cpp/check.h"

using tvm_interop::Activation;
using tvm_interop::Conv2d;
using tvm_interop::CpuExecutor;
using tvm_interop::KernelArgument;
using tvm_interop::KernelLibrary;
using tvm_interop::Layout;
using tvm_interop::LibraryKernel;
using tvm_interop::Matmul;
using tvm_interop::MaxPool2d;
using tvm_interop::OpDescription;

namespace {

// The only kernel of a fake library. It takes the first pixel of each channel and adds a number.
// The number grows by 1 with each `Repack`.
class FakeKernel : public LibraryKernel {
 public:
  FakeKernel(const OpDescription& op, std::vector<KernelArgument> args)
      : size_(op.shapes[0][2] * op.shapes[0][3]), channels_(op.shapes[0][1]), args_(args) {}
  void Run() override {
    const float* data = static_cast<const float*>(*args_[0].data);
    float* result = static_cast<float*>(*args_[1].data);
    for (int64_t c = 0; c < channels_; ++c) result[c] = data[c * size_] + packed_;
    workspace_ = result[0];  // Two streams in this kernel would race here.
  }
  void Repack() override { ++packed_; }
  std::string implementation() const override { return "fake"; }
  int num_reorders() const override { return 0; }

 private:
  int64_t size_, channels_;
  std::vector<KernelArgument> args_;
  float packed_ = 0;
  float workspace_ = 0;
};

class FakeLibrary : public KernelLibrary {
 public:
  std::string name() const override { return "fake"; }
  std::string version() const override { return "1"; }
  std::string WhyUnsupported(const OpDescription& op) const override {
    const std::string why = WhyMalformed(op);
    return why.empty() && op.op != "max_pool2d" ? "only pools" : why;
  }
  Layout BlockedLayout() const override { return Layout::kBlocked16; }
  std::unique_ptr<LibraryKernel> Prepare(const OpDescription& op, int /*threads*/,
                                         const std::vector<KernelArgument>& args) override {
    if (!WhyUnsupported(op).empty()) throw std::runtime_error(WhyUnsupported(op));
    return std::make_unique<FakeKernel>(op, args);
  }
};

tvm_interop::Window SlidingBy2() { return {{3, 3}, {2, 2}, {0, 0, 0, 0}, {1, 1}}; }

MaxPool2d Pool() {
  MaxPool2d op;
  op.op = "max_pool2d";
  op.shapes = {{1, 2, 5, 5}, {1, 2, 2, 2}};
  op.layouts = {Layout::kPlain, Layout::kPlain};
  op.window = SlidingBy2();
  return op;
}

Conv2d Conv() {
  Conv2d op;
  op.op = "conv2d";
  op.shapes = {{1, 4, 5, 5}, {6, 2, 3, 3}, {6}, {1, 6, 2, 2}, {1, 6, 2, 2}};
  op.layouts.assign(5, Layout::kPlain);
  op.window = SlidingBy2();
  op.groups = 2;
  op.ending.has_bias = op.ending.has_sum = true;
  return op;
}

Matmul Product() {
  Matmul op;
  op.op = "matmul";
  op.shapes = {{2, 3, 4}, {4, 5}, {2, 3, 5}};
  op.layouts.assign(3, Layout::kPlain);
  return op;
}

bool Complains(const OpDescription& op, const std::string& about) {
  return tvm_interop::WhyMalformed(op).find(about) != std::string::npos;
}

// Returns `op` after `change` was applied to it.
template <typename Kind, typename Change>
Kind Changed(Kind op, Change&& change) {
  change(op);
  return op;
}

TEST_CASE(WellFormedDescriptionsPass) {
  CHECK_EQ(tvm_interop::WhyMalformed(Pool()), std::string());
  CHECK_EQ(tvm_interop::WhyMalformed(Conv()), std::string());
  CHECK_EQ(tvm_interop::WhyMalformed(Product()), std::string());
  MaxPool2d rounded_up = Pool();
  rounded_up.shapes = {{1, 2, 6, 6}, {1, 2, 3, 3}};
  CHECK_EQ(tvm_interop::WhyMalformed(rounded_up), std::string());
}

TEST_CASE(KindsAreFoundByName) {
  CHECK(dynamic_cast<Conv2d*>(tvm_interop::NewOpDescription("conv2d").get()) != nullptr);
  CHECK_EQ(tvm_interop::NewOpDescription("softmax")->op, std::string("softmax"));
  CHECK_THROWS(tvm_interop::NewOpDescription("sort"), tvm_interop::UnknownKind);
}

TEST_CASE(EqualDescriptionsGiveEqualText) {
  CHECK_EQ(Describe(Conv()), Describe(Conv()));
  const auto differ = [](const Conv2d& op) { return Describe(op) != Describe(Conv()); };
  CHECK(differ(Changed(Conv(), [](Conv2d& op) { op.groups = 1; })));
  CHECK(differ(Changed(Conv(), [](Conv2d& op) { op.allow_tf32 = true; })));
  CHECK(differ(Changed(Conv(), [](Conv2d& op) { op.window.padding[3] = 1; })));
  CHECK(differ(Changed(Conv(), [](Conv2d& op) { op.ending.clip_high = 1; })));
  CHECK(differ(Changed(Conv(), [](Conv2d& op) { op.cut = {0, 2, 0, 5}; })));
}

TEST_CASE(AWrongDescriptionIsRefusedWithItsFault) {
  CHECK(Complains(Changed(Pool(), [](auto& op) { op.shapes[1] = {1, 2, 4, 2}; }),
                  "cannot make (1, 2, 4, 2) of (1, 2, 5, 5)"));
  CHECK(
      Complains(Changed(Pool(), [](auto& op) { op.window.padding = {0, 0}; }), "four for padding"));
  CHECK(Complains(Changed(Pool(), [](auto& op) { op.window.strides = {0, 1}; }), "below 1"));
  CHECK(Complains(Changed(Pool(), [](auto& op) { op.shapes.pop_back(); }), "takes 2 tensors"));
  CHECK(Complains(Changed(Conv(), [](auto& op) { op.groups = 3; }), "in 3 groups"));
  CHECK(Complains(Changed(Conv(), [](auto& op) { op.shapes[2] = {5}; }), "a bias of 6"));
  CHECK(Complains(Changed(Conv(), [](auto& op) { op.shapes[3] = {1, 6, 1, 1}; }),
                  "adds a tensor of another shape"));
  CHECK(Complains(Changed(Conv(), [](auto& op) { op.window.size = {1, 3}; }), "not its weight's"));
  CHECK(Complains(Changed(Product(), [](auto& op) { op.shapes[1] = {3, 5}; }),
                  "cannot make (2, 3, 5)"));
  CHECK(Complains(Changed(Product(),
                          [](auto& op) {
                            op.ending.activation = Activation::kClip;
                            op.ending.clip_low = 1;
                          }),
                  "empty range"));
  CHECK(Complains(Changed(Product(), [](auto& op) { op.layouts[0] = Layout::kBlocked16; }),
                  "not an image"));
  Matmul product = Product();
  product.cut = {1, 1, 3, 8};
  CHECK_EQ(tvm_interop::WhyMalformed(product), std::string());
  product.cut = {1, 1, 4, 8};
  CHECK(Complains(product, "cuts 5 elements, beginning with element 4, from an axis of 8"));
  product.cut = {1, 0, 0, 8};
  CHECK(Complains(product, "cannot cut argument 1 along axis 0"));
  Conv2d conv = Conv();
  conv.cut = {0, 2, 1, 6};
  CHECK_EQ(tvm_interop::WhyMalformed(conv), std::string());
  conv.layouts[0] = Layout::kBlocked16;
  CHECK_EQ(tvm_interop::WhyMalformed(conv), std::string());
  conv.cut = {0, 1, 0, 64};
  CHECK(Complains(conv, "cannot cut argument 0 along axis 1"));
}

TEST_CASE(PreparedKernelsRunSideBySide) {
  FakeLibrary library;
  CHECK_THROWS(library.Prepare(Conv(), 1, {}), std::runtime_error);
  constexpr int kStreams = 2;
  std::vector<float> data(50, 3);
  std::vector<std::vector<float>> results(kStreams, std::vector<float>(8));
  std::vector<void*> addresses{data.data(), results[0].data(), results[1].data()};
  std::vector<std::unique_ptr<LibraryKernel>> kernels;
  std::vector<tvm_interop::PlannedOp> ops;
  for (int s = 0; s < kStreams; ++s) {
    kernels.push_back(
        library.Prepare(Pool(), 1, {{&addresses[0], true}, {&addresses[1 + s], false}}));
    kernels.back()->Repack();
    ops.push_back({"pool" + std::to_string(s), kernels.back().get(), s, {}});
  }
  CpuExecutor executor(kStreams, 1, ops);
  for (int run = 0; run < 500; ++run) {
    data[0] = static_cast<float>(run);
    executor.Run();
    for (const auto& result : results) CHECK_EQ(result[0], static_cast<float>(run) + 1);
  }
  // The address of an argument may change between two runs.
  std::vector<float> elsewhere(50, 7);
  addresses[0] = elsewhere.data();
  kernels[0]->Repack();
  executor.Run();
  CHECK_EQ(results[0][0], 9.0f);
  CHECK_EQ(results[1][0], 8.0f);
}

TEST_CASE(ALibraryThatCannotBeUsedSaysWhy) {
  for (const char* path : {"/nowhere/libdnnl.so.3", "libc.so.6"}) {
    std::string why;
    try {
      tvm_interop::LoadKernelLibrary("onednn", path);
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
    CHECK(why.find(path) != std::string::npos);
  }
  CHECK(tvm_interop::FindKernelLibrary("onednn") == nullptr);
  CHECK_THROWS(tvm_interop::LoadKernelLibrary("magic", ""), std::runtime_error);
}

}  // namespace

#include "runtime/cpu/kernel_library.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/cpu/executor.h"
#include "tests/cpp/check.h"

using tvm_interop::Activation;
using tvm_interop::CpuExecutor;
using tvm_interop::KernelArgument;
using tvm_interop::KernelLibrary;
using tvm_interop::Layout;
using tvm_interop::LibraryKernel;
using tvm_interop::OpDescription;

namespace {

// A library of one kernel: pooling that takes the first pixel of each channel, plus a weight that
// it doubles when it packs.
class FakeKernel : public LibraryKernel {
 public:
  FakeKernel(const OpDescription& op, std::vector<KernelArgument> args)
      : size_(op.shapes[0][2] * op.shapes[0][3]), channels_(op.shapes[0][1]), args_(args) {}
  void Run() override {
    const float* data = static_cast<const float*>(*args_[0].data);
    float* result = static_cast<float*>(*args_[1].data);
    for (int64_t c = 0; c < channels_; ++c) result[c] = data[c * size_] + packed_;
    workspace_ = result[0];  // Plain memory: two streams in one kernel would be a race.
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
  std::unique_ptr<LibraryKernel> Prepare(const OpDescription& op, int /*threads*/,
                                         const std::vector<KernelArgument>& args) override {
    if (!WhyUnsupported(op).empty()) throw std::runtime_error(WhyUnsupported(op));
    return std::make_unique<FakeKernel>(op, args);
  }
};

OpDescription Pool() {
  OpDescription op;
  op.op = "max_pool2d";
  op.shapes = {{1, 2, 5, 5}, {1, 2, 2, 2}};
  op.layouts = {Layout::kPlain, Layout::kPlain};
  op.window = {3, 3};
  op.strides = {2, 2};
  op.padding = {0, 0, 0, 0};
  op.dilation = {1, 1};
  return op;
}

OpDescription Conv() {
  OpDescription op = Pool();
  op.op = "conv2d";
  op.shapes = {{1, 4, 5, 5}, {6, 2, 3, 3}, {6}, {1, 6, 2, 2}, {1, 6, 2, 2}};
  op.layouts.assign(5, Layout::kPlain);
  op.groups = 2;
  op.has_bias = op.has_sum = true;
  return op;
}

OpDescription Matmul() {
  OpDescription op;
  op.op = "matmul";
  op.shapes = {{2, 3, 4}, {4, 5}, {2, 3, 5}};
  op.layouts.assign(3, Layout::kPlain);
  return op;
}

bool Complains(const OpDescription& op, const std::string& about) {
  return tvm_interop::WhyMalformed(op).find(about) != std::string::npos;
}

TEST_CASE(WellFormedDescriptionsPass) {
  for (const OpDescription& op : {Pool(), Conv(), Matmul()}) {
    CHECK_EQ(tvm_interop::WhyMalformed(op), std::string());
  }
  OpDescription rounded_up = Pool();
  rounded_up.shapes = {{1, 2, 6, 6}, {1, 2, 3, 3}};
  CHECK_EQ(tvm_interop::WhyMalformed(rounded_up), std::string());
}

TEST_CASE(AWrongDescriptionIsRefusedWithItsFault) {
  OpDescription op = Pool();
  op.op = "sort";
  CHECK(Complains(op, "`sort` is no kind of operator"));
  op = Pool();
  op.shapes[1] = {1, 2, 4, 2};
  CHECK(Complains(op, "cannot make (1, 2, 4, 2) of (1, 2, 5, 5)"));
  op = Pool();
  op.padding = {0, 0};
  CHECK(Complains(op, "four for padding"));
  op = Pool();
  op.strides = {0, 1};
  CHECK(Complains(op, "below 1"));
  op = Pool();
  op.shapes.pop_back();
  CHECK(Complains(op, "takes 2 tensors"));
  op = Conv();
  op.groups = 3;
  CHECK(Complains(op, "in 3 groups"));
  op = Conv();
  op.shapes[2] = {5};
  CHECK(Complains(op, "a bias of 6"));
  op = Conv();
  op.shapes[3] = {1, 6, 1, 1};
  CHECK(Complains(op, "adds a tensor of another shape"));
  op = Conv();
  op.window = {1, 3};
  CHECK(Complains(op, "not its weight's"));
  op = Matmul();
  op.shapes[1] = {3, 5};
  CHECK(Complains(op, "cannot make (2, 3, 5)"));
  op.activation = Activation::kClip;
  op.clip_low = 1;
  CHECK(Complains(op, "empty range"));
  op = Matmul();
  op.layouts[0] = Layout::kBlocked16;
  CHECK(Complains(op, "no image"));
  op = Matmul();
  op.cut = {1, 1, 3, 8};
  CHECK_EQ(tvm_interop::WhyMalformed(op), std::string());
  op.cut = {1, 1, 4, 8};
  CHECK(Complains(op, "cuts 5 from 4 on out of 8"));
  op.cut = {1, 0, 0, 8};
  CHECK(Complains(op, "cannot cut argument 1 along axis 0"));
  op = Conv();
  op.cut = {0, 2, 1, 6};
  CHECK_EQ(tvm_interop::WhyMalformed(op), std::string());
  op.layouts[0] = Layout::kBlocked16;
  CHECK(Complains(op, "cannot cut argument 0"));
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
  // An address may be another one in the next run.
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

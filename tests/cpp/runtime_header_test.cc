// Tests the C++ header as a program uses it, and wrong uses of both headers. The program is linked
// only to the runtime library, and not to the library's parts, because the parts have classes with
// the same names as the classes of the header.

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/check.h"
#include "tests/cpp/fake_artifact.h"
#include "tvm_interop/runtime.hpp"

namespace {

using tvm_interop::ArtifactOf;
using tvm_interop::Buffer;
using tvm_interop::Error;
using tvm_interop::Fill;
using tvm_interop::Instance;
using tvm_interop::IsRight;
using tvm_interop::kCount;
using tvm_interop::KernelCode;
using tvm_interop::LoadOptions;
using tvm_interop::Model;
using tvm_interop::OperatorTime;
using tvm_interop::PlanText;

Model ModelOf(const std::string& plan) {
  const std::string artifact = ArtifactOf(plan, KernelCode());
  return Model(artifact.data(), artifact.size());
}

Model TheModel() { return ModelOf(PlanText()); }

// Replaces the first place where the text `from` occurs.
std::string With(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

// The text of the error with the status `status` that `body` throws.
template <typename Body>
std::string ErrorOf(tvi_status status, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK_EQ(error.status(), status);
    return error.what();
  }
  return "nothing was thrown";
}

bool Has(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) check::Fail(__FILE__, __LINE__, text);
  return true;
}

void RunAndCheck(Instance* instance, float first) {
  const Buffer x, y, z;
  Fill(x, first);
  instance->Run({x.data()}, {y.data(), z.data()});
  CHECK(IsRight(y.data(), z.data(), first));
}

TEST_CASE(DescribesAModel) {
  const Model model = TheModel();
  CHECK_EQ(model.device(), "cpu:0");
  CHECK_EQ(model.num_shapes(), size_t{1});
  CHECK_EQ(model.inputs()[0].name, "x");
  CHECK_EQ(model.outputs().size(), size_t{2});
  CHECK_EQ(model.FindShape({{kCount}}), size_t{0});
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { model.inputs(1); }), "there is no shape 1");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { model.device(1); }), "there is no shape 1");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { model.FindShape({{1}}); }), "shapes: `x` (1);");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { model.FindShape({}); }), "give one shape");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { Instance(model, 1); }), "there is no shape 1");
}

TEST_CASE(TellsWhichOperatorRanWhen) {
  Instance instance(TheModel());
  const std::vector<OperatorTime> times = instance.Profile();
  CHECK_EQ(times.size(), size_t{5});
  const std::string names = "ABCDE";
  for (const OperatorTime& time : times) {
    CHECK(time.op >= 0 && time.op < 5);
    CHECK_EQ(time.name, names.substr(static_cast<size_t>(time.op), 1));
    CHECK(time.start_ns <= time.end_ns);
  }
}

TEST_CASE(ObjectsThatWereMovedFromAreEmpty) {
  Model model = TheModel();
  Instance instance(model);
  Instance moved = std::move(instance);
  RunAndCheck(&moved, 4);
  CHECK_EQ(moved.warning(), "");
  CHECK_EQ(instance.warning(), "");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { instance.Run(); }), "`instance` is NULL");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { instance.Run({}, {}); }), "`instance` is NULL");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { instance.Profile(); }), "`instance` is NULL");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { instance.Input<float>(0); }), "is NULL");
  const Model other = std::move(model);
  CHECK_EQ(other.num_shapes(), size_t{1});
  CHECK_EQ(other.input_alignment(0), size_t{64});
  CHECK_EQ(other.input_alignment(1000), size_t{0});
  CHECK_EQ(model.num_shapes(), size_t{0});
  CHECK(model.inputs().empty());
  CHECK_EQ(model.warning(), "");
  CHECK_EQ(model.batch_size(0), int64_t{0});
  CHECK_EQ(model.input_alignment(0), size_t{0});
  CHECK_EQ(model.row_size(0), int64_t{0});
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { Instance{model}; }), "`model` is NULL");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { model.FindRows(1); }), "is NULL");
  instance = std::move(moved);
  RunAndCheck(&instance, 5);
}

TEST_CASE(BuffersHaveTypes) {
  Instance instance(TheModel());
  CHECK_EQ(instance.Input<float>(0).size(), static_cast<size_t>(kCount));
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { instance.Input<int32_t>(0); }),
      "of a type that `x` does not have");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { instance.Input<float>(1); }),
      "there is no input 1");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { instance.Output<float>(9); }),
      "there is no output 9");
  Has(ErrorOf(TVI_ERROR_INVALID_ARGUMENT, [&] { instance.Run({nullptr}, {}); }), "one address");
  instance.Run({nullptr}, {nullptr, nullptr});
  CHECK_EQ(instance.Output<float>(0)[0], 101.0f);
  CHECK(tvm_interop::internal::Holds<uint16_t>(TVI_FLOAT16));
  CHECK(tvm_interop::internal::Holds<const uint16_t>(TVI_BFLOAT16));
  CHECK(!tvm_interop::internal::Holds<int16_t>(TVI_FLOAT16));
  CHECK(!tvm_interop::internal::Holds<uint16_t>(TVI_INT16));
}

TEST_CASE(NullIsNoModelAndNoInstance) {
  CHECK_EQ(tvi_model_num_shapes(nullptr), size_t{0});
  CHECK_EQ(tvi_model_num_inputs(nullptr), size_t{0});
  CHECK_EQ(tvi_model_num_outputs(nullptr), size_t{0});
  CHECK(tvi_model_input(nullptr, 0, 0) == nullptr);
  CHECK(tvi_model_output(nullptr, 0, 0) == nullptr);
  CHECK(tvi_model_device(nullptr, 0) == nullptr);
  CHECK(tvi_model_warning(nullptr) == nullptr);
  CHECK(tvi_model_row_dimension(nullptr) == nullptr);
  CHECK(tvi_model_row_mask(nullptr, 0) == nullptr);
  CHECK_EQ(tvi_model_uses_fallback(nullptr), 0);
  CHECK_EQ(tvi_model_weights_nbytes(nullptr), size_t{0});
  CHECK_EQ(tvi_model_instance_nbytes(nullptr, 0), size_t{0});
  CHECK_EQ(tvi_model_batch_size(nullptr, 0), int64_t{0});
  CHECK_EQ(tvi_model_input_alignment(nullptr, 0, 0), size_t{0});
  CHECK_EQ(tvi_model_row_size(nullptr, 0), int64_t{0});
  CHECK_EQ(tvi_model_num_threads(nullptr, 0), 0);
  CHECK(tvi_instance_warning(nullptr) == nullptr);
  CHECK(tvi_instance_input_buffer(nullptr, 0) == nullptr);
  CHECK(tvi_instance_output_buffer(nullptr, 0) == nullptr);
  CHECK_EQ(tvi_run(nullptr, nullptr, nullptr), TVI_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tvi_run_rows(nullptr, 1, nullptr, nullptr), TVI_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tvi_profile(nullptr, nullptr, nullptr, nullptr, 0, nullptr), TVI_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tvi_model_load(nullptr, nullptr, nullptr), TVI_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tvi_model_load_memory(nullptr, 5, nullptr, nullptr), TVI_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tvi_instance_create(nullptr, 0, nullptr), TVI_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tvi_instance_create_on_pool(nullptr, 0, nullptr, nullptr), TVI_ERROR_INVALID_ARGUMENT);
  tvi_model_free(nullptr);
  tvi_instance_free(nullptr);
  const Model model = TheModel();
  size_t shape = 77;
  const int64_t* const shapes[] = {nullptr};
  CHECK_EQ(tvi_model_find_shape(model.get(), shapes, &shape), TVI_ERROR_INVALID_ARGUMENT);
  Has(tvi_last_error(), "the shape of input `x` is NULL");
  CHECK_EQ(tvi_model_find_rows(model.get(), 3, &shape), TVI_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(shape, size_t{77});
  Instance instance(model);
  CHECK_EQ(tvi_run_rows(instance.get(), -5, nullptr, nullptr), TVI_ERROR_INVALID_ARGUMENT);
  Has(tvi_last_error(), "not compiled for a range of rows");
  CHECK(tvi_model_input(model.get(), SIZE_MAX, SIZE_MAX) == nullptr);
  CHECK(tvi_instance_input_buffer(instance.get(), SIZE_MAX) == nullptr);
}

TEST_CASE(AProfileThatFailsLeavesItsCount) {
  Instance instance(TheModel());
  float negative[kCount] = {-1};
  const void* inputs[] = {negative};
  tvi_operator_time times[5];
  size_t count = 99;
  CHECK_EQ(tvi_profile(instance.get(), inputs, nullptr, times, 5, &count), TVI_ERROR_EXECUTION);
  CHECK_EQ(count, size_t{99});
  CHECK_EQ(tvi_profile(instance.get(), inputs, nullptr, times, 4, &count), TVI_OK);
  CHECK_EQ(count, size_t{5});
}

TEST_CASE(WhatIsNoFileIsRefused) {
  char folder[] = "/tmp/tvm_interop_test_XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  const std::string pipe = std::string(folder) + "/pipe";
  CHECK_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string(folder), std::string("/dev/zero")}) {
    Has(ErrorOf(TVI_ERROR_ARTIFACT, [&] { Model{path}; }), "it is not a file");
  }
  Has(ErrorOf(TVI_ERROR_ARTIFACT, [] { Model{""}; }), "it cannot be read");
  Has(ErrorOf(TVI_ERROR_ARTIFACT, [] { Model{std::string(10000, 'x')}; }), "it cannot be read");
  unlink(pipe.c_str());
  rmdir(folder);
}

// Covers scalars, tensors without elements, and tensors of one byte.
TEST_CASE(UnusualTensors) {
  // Operators E and then D get tensors that do not fit their shapes. The wrong shapes are safe
  // because nothing runs here.
  Model scalar = ModelOf(With(With(PlanText(), R"("x", "shape": [1000])", R"("x", "shape": [])"),
                              R"("z", "shape": [1000], "dtype": "float32")",
                              R"("z", "shape": [], "dtype": "bool")"));
  CHECK_EQ(scalar.inputs()[0].shape.size(), size_t{0});
  CHECK_EQ(scalar.inputs()[0].nbytes, size_t{4});
  CHECK_EQ(scalar.outputs()[1].nbytes, size_t{1});
  CHECK_EQ(scalar.FindShape({{}}), size_t{0});
  const Model empty = ModelOf(With(PlanText(), R"("x", "shape": [1000])", R"("x", "shape": [0])"));
  CHECK_EQ(empty.inputs()[0].nbytes, size_t{0});
  Instance instance(empty);
  CHECK_EQ(instance.Input<float>(0).size(), size_t{0});
  Has(ErrorOf(TVI_ERROR_ARTIFACT, [] { ModelOf(With(PlanText(), "float32", "int4")); }), "int4");
}

TEST_CASE(OneInstanceIsUsedByOneThread) {
  Instance instance(TheModel());
  int refused = 0;
  const auto work = [&instance](int* refused_here) {
    for (int i = 0; i < 300; ++i) {
      try {
        RunAndCheck(&instance, static_cast<float>(i));
      } catch (const Error& error) {
        CHECK_EQ(error.status(), TVI_ERROR_EXECUTION);
        ++*refused_here;
      }
    }
  };
  int refused_there = 0;
  std::thread other(work, &refused_there);
  work(&refused);
  other.join();
  CHECK(refused + refused_there < 600);
}

}  // namespace

// Runs a model for a GPU on the fake CUDA, without TVM and without Python.

#include "runtime/model/gpu_instance.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/model/error.h"
#include "runtime/model/gpu_code.h"
#include "runtime/model/gpu_kernels.h"
#include "runtime/model/instance.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_gpu_artifact.h"

namespace {

using namespace tvm_interop;  // NOLINT: this file is about nothing else.

template <typename Function>
Function* Switch(const char* name) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != nullptr);
  auto* function = reinterpret_cast<Function*>(dlsym(driver, name));
  CHECK(function != nullptr);
  return function;
}

float* At(int64_t address) { return reinterpret_cast<float*>(address); }

// Functions that compute on the host what the kernels compute. `values` are the kernel's
// parameters. The number of elements is an integer of 32 bits.
void Twice(const int64_t* values) {
  for (int32_t i = 0; i < static_cast<int32_t>(values[2]); ++i) {
    At(values[1])[i] = 2 * At(values[0])[i];
  }
}
void AddOne(const int64_t* values) {
  for (int32_t i = 0; i < static_cast<int32_t>(values[2]); ++i) {
    At(values[1])[i] = At(values[0])[i] + 1;
  }
}
void Add(const int64_t* values) {
  for (int32_t i = 0; i < static_cast<int32_t>(values[3]); ++i) {
    At(values[2])[i] = At(values[0])[i] + At(values[1])[i];
  }
}
void Checked(const int64_t* values) {
  for (int32_t i = 0; i < static_cast<int32_t>(values[2]); ++i) At(values[1])[i] = At(values[0])[i];
}

std::shared_ptr<Model> ModelOf(const std::string& plan, const std::string& kernels) {
  auto* tell = Switch<void(const char*, int, void (*)(const int64_t*))>("FakeCudaTellKernel");
  tell("twice_kernel", 3, Twice);
  tell("add_one_kernel", 3, AddOne);
  tell("add_kernel", 4, Add);
  tell("checked_kernel", 3, Checked);
  const std::string artifact = ArtifactOf(plan, kernels);
  return std::make_shared<Model>(*OpenMemory(artifact.data(), artifact.size()), LoadOptions());
}

std::shared_ptr<Model> TheModel() { return ModelOf(GpuPlanText(), GpuKernelCode()); }

// The text of the error that `body` throws, which must have the code `code`.
std::string ErrorOf(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const ModelError& error) {
    CHECK_EQ(static_cast<int>(error.code()), static_cast<int>(code));
    return error.what();
  }
  return "nothing was thrown";
}

bool Has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  check::Fail(__FILE__, __LINE__, text);
  return false;
}

// Lets the fake GPU work in threads of its own while this object lives, with random delays. By
// default, the fake GPU works in the calling thread. With several calling threads it would have a
// race itself.
class Asynchronous {
 public:
  explicit Asynchronous(int seed) : set_delays_(Switch<void(int)>("FakeCudaSetDelays")) {
    set_delays_(seed);
  }
  ~Asynchronous() { set_delays_(0); }
  Asynchronous(const Asynchronous&) = delete;
  Asynchronous& operator=(const Asynchronous&) = delete;

 private:
  void (*set_delays_)(int);
};

TEST_CASE(RunsOnMemoryOfTheHost) {
  const auto model = TheModel();
  CHECK_EQ(model->plan(0).Gpu().value(), 0);
  const auto instance = MakeInstance(model, 0);
  for (int i = 0; i < 20; ++i) RunAndCheck(instance.get(), static_cast<float>(i), i % 3 * 4);
}

TEST_CASE(RunsOnItsOwnBuffers) {
  const auto instance = MakeInstance(TheModel(), 0);
  auto* x = static_cast<float*>(instance->InputBuffer(0));
  CHECK_EQ(x[5], 0.0f);
  for (int run = 0; run < 3; ++run) {
    for (int64_t i = 0; i < kCount; ++i) x[i] = static_cast<float>(run + i);
    instance->Run(nullptr, nullptr);
    CHECK(IsRight(static_cast<float*>(instance->OutputBuffer(0)),
                  static_cast<float*>(instance->OutputBuffer(1)), static_cast<float>(run)));
    RunAndCheck(instance.get(), 50);  // The next run uses the instance's own buffer again.
  }
}

TEST_CASE(TakesOutputsThatShareBytesWithInputs) {
  const auto instance = MakeInstance(TheModel(), 0);
  const Buffer x, z;
  Fill(x, 3);
  const void* inputs[] = {x.data()};
  void* outputs[] = {x.data(), z.data()};
  instance->Run(inputs, outputs);
  CHECK(IsRight(x.data(), z.data(), 3));
}

TEST_CASE(OutputsMayBeInputsWeightsOrListedTwice) {
  const std::string plan =
      Replaced(GpuPlanText(), R"("outputs": [5, 6])", R"("outputs": [0, 5, 6, 5, 1])");
  const auto instance = MakeInstance(ModelOf(plan, GpuKernelCode()), 0);
  const Buffer x, same, y, z, again, weight;
  Fill(x, 9);
  const void* inputs[] = {x.data()};
  void* outputs[] = {same.data(), y.data(), z.data(), again.data(), weight.data()};
  for (int run = 0; run < 2; ++run) {
    instance->Run(inputs, outputs);
    CHECK(IsRight(y.data(), z.data(), 9));
    CHECK(IsRight(again.data(), same.data(), 9));
    CHECK_EQ(weight.data()[kCount - 1], 100.0f);
  }
}

TEST_CASE(TakesMemoryOfItsGpu) {
  for (int seed : {0, 6}) {
    const Asynchronous gpu(seed);
    const auto instance = MakeInstance(TheModel(), 0);
    const CudaMemory x(0, kNbytes), y(0, kNbytes), elsewhere(1, kNbytes);
    const Buffer z;
    for (int run = 0; run < 3; ++run) {
      for (int64_t i = 0; i < kCount; ++i) {
        static_cast<float*>(x.at(0))[i] = static_cast<float>(run + i);  // This works on a fake GPU.
      }
      const void* inputs[] = {x.at(0)};
      void* outputs[] = {y.at(0), z.data()};
      instance->Run(inputs, outputs);
      CHECK(IsRight(static_cast<float*>(y.at(0)), z.data(), static_cast<float>(run)));
      void* profiled[] = {z.data(), y.at(0)};
      instance->Profile(inputs, profiled);
      CHECK(IsRight(z.data(), static_cast<float*>(y.at(0)), static_cast<float>(run)));
    }
    const void* inputs[] = {elsewhere.at(0)};
    Has(ErrorOf(ErrorCode::kInvalidArgument, [&] { instance->Run(inputs, nullptr); }),
        "the memory for `x` is on cuda:1, and the model runs on cuda:0");
    void* outputs[] = {nullptr, elsewhere.at(0)};
    Has(ErrorOf(ErrorCode::kInvalidArgument, [&] { instance->Run(nullptr, outputs); }),
        "the memory for `z` is on cuda:1");
    RunAndCheck(instance.get(), 8);
  }
}

TEST_CASE(TellsWhenOperatorsRan) {
  const auto instance = MakeInstance(TheModel(), 0);
  const Buffer x, y, z;
  Fill(x, 7);
  const void* inputs[] = {x.data()};
  void* outputs[] = {y.data(), z.data()};
  const std::vector<OpTiming> timings = instance->Profile(inputs, outputs);
  CHECK_EQ(timings.size(), size_t{5});
  for (const OpTiming& timing : timings) CHECK(timing.start_ns <= timing.end_ns);
  CHECK(IsRight(y.data(), z.data(), 7));
}

TEST_CASE(CopiesAndKernelsAreOrderedOnTheGpu) {
  const auto model = TheModel();
  for (int seed = 1; seed <= 3; ++seed) {
    const Asynchronous gpu(seed);
    const auto instance = MakeInstance(model, 0);
    for (int i = 0; i < 30; ++i) RunAndCheck(instance.get(), static_cast<float>(100 * i));
    instance->Profile(nullptr, nullptr);
  }
}

TEST_CASE(ThreadsHaveInstancesOfTheirOwn) {
  const Asynchronous gpu(4);
  const auto model = TheModel();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([model, t] {
      const auto instance = MakeInstance(model, 0);
      for (int i = 0; i < 20; ++i) RunAndCheck(instance.get(), static_cast<float>(100 * t + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE(OneInstanceRunsInOneThreadAtATime) {
  const Asynchronous gpu(5);
  const auto instance = MakeInstance(TheModel(), 0);
  std::atomic<int> refused{0}, ran{0};
  const auto work = [&] {
    for (int i = 0; i < 50; ++i) {
      try {
        RunAndCheck(instance.get(), static_cast<float>(i));
        ++ran;
      } catch (const ModelError& error) {
        CHECK_EQ(static_cast<int>(error.code()), static_cast<int>(ErrorCode::kExecution));
        ++refused;
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
  CHECK_EQ(refused + ran, 100);
  CHECK(ran > 0);
}

int64_t seen_address = 0;
int32_t seen_integer = 0;
float seen_float = 0;

void See(const int64_t* values) {
  seen_address = values[0];
  std::memcpy(&seen_integer, &values[1], sizeof(seen_integer));
  std::memcpy(&seen_float, &values[2], sizeof(seen_float));
}

KernelValue ValueOf(int64_t bits) {
  KernelValue value{};
  std::memcpy(&value.pointer, &bits, sizeof(bits));
  return value;
}

TEST_CASE(KernelsGetTheirParameters) {
  using Parameter = GpuKernel::Parameter;
  Switch<void(const char*, int, void (*)(const int64_t*))>("FakeCudaTellKernel")("see", 3, See);
  GpuCode code;
  code.code = Fatbin({"see"}, 90);
  code.kernels["see"] = {{Parameter::kWhole, Parameter::kInt32, Parameter::kFloat32}, {0, 3}, true};
  GpuKernels kernels({code});
  CudaStreams streams({CudaStreamOptions{}});
  const CudaStreams::Lease lease(&streams);
  const CudaStream stream = streams.stream(0);
  void* function = nullptr;
  CHECK_EQ(GpuKernels::Lookup(&kernels, "see", &function), 0);
  const double half = 0.5;
  int64_t half_bits = 0;
  std::memcpy(&half_bits, &half, sizeof(half_bits));
  KernelValue result{};
  const auto launch = [&](int64_t blocks, int64_t shared_nbytes, int32_t number = 6) {
    const KernelValue args[] = {ValueOf(0x123456789a), ValueOf(-7),  ValueOf(half_bits),
                                ValueOf(blocks),       ValueOf(128), ValueOf(shared_nbytes)};
    return GpuKernels::Call(function, args, number, &result);
  };
  CHECK(launch(4, 60000) != 0);  // This thread has no stream.
  const GpuKernels::OnStream on(stream);
  CHECK(launch(4, 60000, 5) != 0);
  CHECK(launch(-1, 60000) != 0);
  CHECK(launch(int64_t{1} << 40, 60000) != 0);
  CHECK(launch(4, 300000) != 0);  // More shared memory than a GPU has.
  CHECK_EQ(seen_integer, 0);
  // A kernel must ask for more than 48 KiB of shared memory explicitly.
  CHECK_EQ(launch(4, 60000), 0);
  streams.Settle();
  CHECK_EQ(seen_address, int64_t{0x123456789a});
  CHECK_EQ(seen_integer, -7);
  CHECK_EQ(seen_float, 0.5f);
  CHECK_EQ(launch(0, 60000), 0);  // A tensor without elements: CUDA takes no size of 0.
  CHECK(GpuKernels::Lookup(&kernels, "none", &function) != 0);
}

TEST_CASE(AnInstanceOutlivesItsModel) {
  std::unique_ptr<Runnable> instance;
  instance = MakeInstance(TheModel(), 0);
  RunAndCheck(instance.get(), 1);
}

TEST_CASE(AForkedChildCannotUseTheGpuAndSaysSo) {
  auto instance = MakeInstance(TheModel(), 0);
  const pid_t child = fork();
  if (child == 0) {
    Has(ErrorOf(ErrorCode::kExecution, [&] { instance->Run(nullptr, nullptr); }),
        "this process was forked after CUDA had started");
    instance.reset();
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  RunAndCheck(instance.get(), 3);
}

TEST_CASE(ModelsThatDoNotRunHereAreRefused) {
  const auto open = [](const std::string& plan, const std::string& kernels) {
    return [=] { MakeInstance(ModelOf(plan, kernels), 0); };
  };
  Has(ErrorOf(ErrorCode::kUnsupported, open(GpuPlanText("cuda:7"), GpuKernelCode())),
      "there is no device `cuda:7`: this machine has 3");
  Has(ErrorOf(ErrorCode::kUnsupported, open(GpuPlanText(), GpuKernelCode(SavedGpuCode(70)))),
      "the kernels do not load on Fake GPU 0 sm_90");
  Has(ErrorOf(ErrorCode::kUnsupported,
              open(GpuPlanText(), GpuKernelCode(SavedGpuCode(90, "clusterCtaIdx.x")))),
      "is launched in a way that is not known: `clusterCtaIdx.x`");
  Has(ErrorOf(ErrorCode::kUnsupported,
              open(GpuPlanText(), GpuKernelCode(SavedModules("rocm", "")))),
      "a module of kind `rocm`");
  Has(ErrorOf(ErrorCode::kArtifact, open(GpuPlanText(), KernelCode())),
      "its kernel library has no code for one");
  Has(ErrorOf(ErrorCode::kArtifact,
              open(Replaced(GpuPlanText(), "\"twice\"", "\"thrice\""), GpuKernelCode())),
      "the kernel library has no `thrice`");
  Has(ErrorOf(ErrorCode::kExecution,
              open(Replaced(GpuPlanText(), "\"twice\"", "\"missing\""), GpuKernelCode())),
      "calls `missing_kernel`, which the kernel library does not have");
  std::string two = GpuPlanText();
  two.replace(two.find("cuda:0"), 6, "cuda:1");
  Has(ErrorOf(ErrorCode::kUnsupported, open(two, GpuKernelCode())), "several GPUs");
  two.replace(two.find("cuda:1"), 6, "cpu:0");
  Has(ErrorOf(ErrorCode::kArtifact, open(two, GpuKernelCode())), "cannot be combined");
  Has(ErrorOf(ErrorCode::kInvalidArgument,
              [] { MakeInstance(TheModel(), 0)->RunRows({1}, nullptr, nullptr); }),
      "not compiled for a range of rows");
}

TEST_CASE(AMissingGraphIsReported) {
  const auto model = TheModel();
  CHECK_EQ(MakeInstance(model, 0)->Warning(), "");
  Switch<void(const char*, int)>("FakeCudaFailNext")("cudaGraphInstantiate", 2);
  const auto instance = MakeInstance(model, 0);
  Has(instance->Warning(), "no CUDA graph, operators are launched one by one: ");
  Has(instance->Warning(), "cudaGraphInstantiate");
  RunAndCheck(instance.get(), 5);
}

TEST_CASE(FailuresOfTheGpuAreReported) {
  auto* fail_next = Switch<void(const char*, int)>("FakeCudaFailNext");
  auto* fail_work = Switch<void(const char*, int)>("FakeCudaFailWork");
  const auto model = TheModel();
  fail_next("cudaMalloc", 2);
  Has(ErrorOf(ErrorCode::kOutOfMemory, [&] { MakeInstance(model, 0); }),
      "the GPU cannot give the model's");
  fail_next("cuModuleGetFunction", 500);
  Has(ErrorOf(ErrorCode::kExecution, [&] { MakeInstance(model, 0); }),
      "the GPU code has no kernel");
  fail_next("cuLaunchKernelEx", 701);
  Has(ErrorOf(ErrorCode::kExecution, [&] { MakeInstance(model, 0); }), "cannot be launched");
  const auto instance = MakeInstance(model, 0);
  fail_next("cudaMemcpyAsync", 1);
  Has(ErrorOf(ErrorCode::kExecution, [&] { instance->Run(nullptr, nullptr); }), "cudaMemcpyAsync");
  RunAndCheck(instance.get(), 2);
  fail_work("add_kernel", 700);
  Has(ErrorOf(ErrorCode::kExecution, [&] { MakeInstance(model, 0); }), "failed on the GPU");
  Has(ErrorOf(ErrorCode::kExecution, [&] { instance->Run(nullptr, nullptr); }),
      "the GPU cannot be used any more in this process");
  Switch<void()>("FakeCudaRepair")();
}

// The file may come from an untrusted source, so each damage must give an error and no crash.
TEST_CASE(CodeThatIsCutOffOrChangedIsRefused) {
  const std::string whole = SavedGpuCode();
  CHECK_EQ(ReadGpuCode(whole.data(), whole.size()).size(), size_t{1});
  for (size_t size = 0; size < whole.size(); ++size) {
    // Memory of exactly `size` bytes, so that a sanitizer sees each read beyond it.
    const std::vector<char> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    bool is_refused = false;
    try {
      ReadGpuCode(part.data(), part.size());
    } catch (const std::runtime_error&) {
      is_refused = true;
    }
    CHECK(is_refused);
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::vector<char> changed(whole.begin(), whole.end());
    changed[at] = static_cast<char>(changed[at] ^ 0xff);
    try {
      ReadGpuCode(changed.data(), changed.size());
    } catch (const std::runtime_error&) {
      continue;  // Not every change can be noticed.
    }
  }
}

}  // namespace

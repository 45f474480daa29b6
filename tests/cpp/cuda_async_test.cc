// Runs random plans on the asynchronous fake CUDA, where each stream has a thread of its own and
// work starts after random delays. Only the executor's events keep the results right. Under
// ThreadSanitizer, a missing wait is also a data race of two kernels.

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cuda/executor.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/staging.h"
#include "tests/cpp/check.h"

namespace {

using tvm_interop::CudaDispatch;
using tvm_interop::CudaExecutor;
using tvm_interop::CudaKernel;
using tvm_interop::CudaMemory;
using tvm_interop::CudaPlannedOp;
using tvm_interop::CudaStaging;
using tvm_interop::CudaStream;
using tvm_interop::CudaStreamOptions;
using tvm_interop::CudaStreams;

constexpr int kNumbers = 8;
constexpr size_t kValueBytes = kNumbers * sizeof(float);
constexpr int kRuns = 2;
constexpr int kTimedRuns = 3;

template <typename Function>
Function* FakeFunction(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != nullptr);
  auto* found = reinterpret_cast<Function*>(dlsym(driver, name));
  CHECK(found != nullptr);
  return found;
}

void SetDelays(int seed) { FakeFunction<void(int)>("FakeCudaSetDelays")(seed); }

// Half the sum of the inputs, plus a number, plus the number of runs so far.
struct Formula {
  std::vector<const float*> inputs;
  float* output = nullptr;
  float* runs = nullptr;  // Read and changed by each run.
  float number = 0;

  void Compute() const {
    for (int i = 0; i < kNumbers; ++i) {
      float sum = 0;
      for (const float* input : inputs) sum += input[i];
      runs[i] += 1;
      output[i] = sum * 0.5f + number + runs[i];
    }
  }
};

class FormulaKernel : public CudaKernel {
 public:
  explicit FormulaKernel(Formula formula) : formula_(std::move(formula)) {}
  void Launch(const CudaStream& stream) override {
    static auto* const launch =
        FakeFunction<int(const char*, void*, void (*)(int64_t), int64_t)>("FakeCudaLaunch");
    const auto effect = [](int64_t self) { reinterpret_cast<const Formula*>(self)->Compute(); };
    CHECK_EQ(launch("formula", stream.handle, effect, reinterpret_cast<int64_t>(&formula_)), 0);
  }

 private:
  Formula formula_;
};

// A random graph: the inputs of each operator are outputs of earlier operators, or the value -1,
// which the host writes.
struct RandomGraph {
  explicit RandomGraph(int seed) : random(static_cast<unsigned>(seed)) {
    const int num_ops = 6 + static_cast<int>(random() % 10);
    for (int i = 0; i < num_ops; ++i) {
      inputs.emplace_back();
      for (unsigned k = 0; k < 1 + random() % 3; ++k) {
        inputs[i].push_back(static_cast<int>(random() % (i + 1)) - 1);
      }
      stream_of.push_back(static_cast<int>(random() % 4));
    }
  }

  // The operators of other streams that operator `op` must wait for.
  std::vector<int> WaitsOf(int op) const {
    std::vector<int> waits;
    for (int input : inputs[op]) {
      if (input >= 0 && stream_of[input] != stream_of[op]) waits.push_back(input);
    }
    return waits;
  }

  std::mt19937 random;
  std::vector<std::vector<int>> inputs;
  std::vector<int> stream_of;
};

// The memory of a graph: first the input, then for each operator its output and its number of runs.
struct Values {
  explicit Values(float* first) : input(first) {}
  float* output(int op) const { return input + (1 + 2 * op) * kNumbers; }
  float* runs(int op) const { return input + (2 + 2 * op) * kNumbers; }
  float* of(int value) const { return value < 0 ? input : output(value); }
  float* input;
};

Formula FormulaOf(const RandomGraph& graph, int op, const Values& values) {
  Formula formula;
  for (int input : graph.inputs[op]) formula.inputs.push_back(values.of(input));
  formula.output = values.output(op);
  formula.runs = values.runs(op);
  formula.number = static_cast<float>(op);
  return formula;
}

// Returns whether a random graph gives the same results as its operators in order, one by one.
// `dropped` is the number of the wait between streams that is left out, or -1.
bool IsRight(int seed, CudaDispatch dispatch, int dropped) {
  RandomGraph graph(seed);
  const int num_ops = static_cast<int>(graph.inputs.size());
  const size_t num_values = 1 + 2 * graph.inputs.size();
  SetDelays(seed);
  auto streams = std::make_shared<CudaStreams>(std::vector<CudaStreamOptions>(4));
  CudaMemory memory(0, num_values * kValueBytes);
  FillWithZeros(streams.get(), memory);
  tvm_interop::CudaLoader loader(streams);
  const Values on_gpu(static_cast<float*>(memory.at(0)));
  std::vector<std::unique_ptr<FormulaKernel>> kernels;
  std::vector<CudaPlannedOp> ops;
  for (int i = 0; i < num_ops; ++i) {
    kernels.push_back(std::make_unique<FormulaKernel>(FormulaOf(graph, i, on_gpu)));
    std::vector<int> waits = graph.WaitsOf(i);
    if (dropped >= 0 && dropped < static_cast<int>(waits.size())) {
      waits.erase(waits.begin() + dropped);
      dropped = -1;
    } else {
      dropped -= dropped >= 0 ? static_cast<int>(waits.size()) : 0;
    }
    ops.push_back({"op" + std::to_string(i), kernels[i].get(), graph.stream_of[i], waits});
  }

  std::vector<float> expected(num_values * kNumbers);
  const Values on_host(expected.data());
  const auto write = [&] {
    for (int i = 0; i < kNumbers; ++i) on_host.input[i] = static_cast<float>(graph.random() % 1000);
    loader.ToDevice(0, on_gpu.input, on_host.input, kValueBytes);
  };
  const auto compute = [&](int runs) {
    for (int run = 0; run < runs; ++run) {
      for (int i = 0; i < num_ops; ++i) FormulaOf(graph, i, on_host).Compute();
    }
  };
  std::vector<float> got(expected.size());
  const auto is_equal = [&] {
    loader.ToHost(0, got.data(), on_gpu.input, num_values * kValueBytes);
    return std::memcmp(got.data(), expected.data(), num_values * kValueBytes) == 0;
  };

  write();
  CudaExecutor executor(streams, ops, dispatch);
  CHECK(executor.dispatch() == dispatch);
  compute(1);  // The executor runs each operator once to warm up.
  bool is_right = is_equal();
  for (int run = 0; run < kRuns; ++run) {
    write();
    executor.Run();
    compute(1);
    is_right = is_equal() && is_right;
  }
  write();
  executor.Time(kTimedRuns);  // One run follows the other without a wait of the host.
  compute(kTimedRuns);
  is_right = is_equal() && is_right;

  // The host changes the input while earlier copies and runs may still be at work.
  const size_t nbytes = num_values * kValueBytes;
  CudaStaging staging(streams, {{{{0, on_gpu.input}}, kValueBytes}, {{{0, on_gpu.input}}, nbytes}});
  for (int run = 0; run < kRuns; ++run) {
    for (int i = 0; i < kNumbers; ++i) on_host.input[i] = static_cast<float>(graph.random() % 1000);
    staging.Write(0, on_host.input);
    executor.Start();
    compute(1);
    staging.FetchAlone(1);
    staging.Take(1, got.data());
    is_right = std::memcmp(got.data(), expected.data(), nbytes) == 0 && is_right;
    staging.Write(0, on_host.input);
    executor.Start();
    compute(1);
  }
  is_right = is_equal() && is_right;
  executor.Start();  // Memory that this run needs must live until the run has ended.
  return is_right;
}

constexpr CudaDispatch kDispatches[] = {CudaDispatch::kStreams, CudaDispatch::kCapturedGraph,
                                        CudaDispatch::kLinkedGraph};

// If this environment variable is set, the program runs only plans from which a wait is missing.
constexpr const char* kPlant = "PLANT_A_MISSING_WAIT";

int NumWrongWithoutAWait(CudaDispatch dispatch);

TEST_CASE(RunsOnlyThePlantedFaultIfAskedTo) {
  if (std::getenv(kPlant) == nullptr) return;
  for (CudaDispatch dispatch : kDispatches) NumWrongWithoutAWait(dispatch);
  std::exit(0);
}

TEST_CASE(RandomPlansGiveTheSameBitsAfterAnyDelays) {
  // Most of the time, a thread waits for delays of the fake GPU. So several threads run the seeds
  // at the same time.
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int first = 1; first <= kThreads; ++first) {
    threads.emplace_back([first] {
      for (int seed = first; seed <= 340; seed += kThreads) {
        for (CudaDispatch dispatch : kDispatches) CHECK(IsRight(seed, dispatch, -1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE(ThreadsRunTheirPlansSideBySide) {
  std::vector<std::thread> threads;
  SetDelays(1);
  for (int seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([seed] { CHECK(IsRight(seed, kDispatches[seed % 3], -1)); });
  }
  for (std::thread& thread : threads) thread.join();
}

int NumWrongWithoutAWait(CudaDispatch dispatch) {
  int num_wrong = 0;
  for (int seed = 1; seed <= 60; ++seed) num_wrong += !IsRight(seed, dispatch, seed % 3);
  return num_wrong;
}

#ifdef __SANITIZE_THREAD__
// If ThreadSanitizer finds a race, the process fails. So another process runs the plans from which
// a wait is missing, and this process reads its report.
TEST_CASE(AMissingWaitIsADataRace) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string found = " 2>&1 | grep -q 'data race'";
  CHECK_EQ(std::system((kPlant + std::string("=1 ") + self + found).c_str()), 0);
}
#else
TEST_CASE(AMissingWaitGivesOtherBits) {
  for (CudaDispatch dispatch : kDispatches) CHECK(NumWrongWithoutAWait(dispatch) > 0);
}
#endif

}  // namespace

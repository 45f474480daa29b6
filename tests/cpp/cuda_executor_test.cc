// Runs the CUDA executor on the fake CUDA, so that sanitizers can check its memory and threads. The
// Python tests in `tests/fake_cuda` check results and order.

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cuda/executor.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/staging.h"
#include "runtime/cuda/timing.h"
#include "tests/cpp/check.h"

namespace {

using tvm_interop::CudaDispatch;
using tvm_interop::CudaExecutor;
using tvm_interop::CudaKernel;
using tvm_interop::CudaMemory;
using tvm_interop::CudaPlannedOp;
using tvm_interop::CudaStream;
using tvm_interop::CudaStreams;
using tvm_interop::PeerCopy;

// A kernel that counts its launches. The launch with the number `fails_at` throws.
class Counting : public CudaKernel {
 public:
  explicit Counting(int fails_at = 0) : fails_at_(fails_at) {}
  void Launch(const CudaStream&) override {
    if (++launches == fails_at_) throw std::runtime_error("on purpose");
  }
  int launches = 0;

 private:
  int fails_at_;
};

// A function of the fake driver.
template <typename Function>
Function* FakeFunction(const char* name) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != nullptr);
  auto* found = reinterpret_cast<Function*>(dlsym(driver, name));
  CHECK(found != nullptr);
  return found;
}

void FailNext(const char* call, int status) {
  FakeFunction<void(const char*, int)>("FakeCudaFailNext")(call, status);
}

// A diamond: `left` and `right` read the result of `a` on two streams, and `join` waits for both.
std::vector<CudaPlannedOp> Diamond(const std::vector<CudaKernel*>& kernels) {
  return {{"a", kernels[0], 0, {}},
          {"left", kernels[1], 0, {}},
          {"right", kernels[2], 1, {0}},
          {"join", kernels[3], 0, {2}}};
}

std::shared_ptr<CudaStreams> TwoStreams() {
  return std::make_shared<CudaStreams>(
      std::vector<tvm_interop::CudaStreamOptions>{{0, false}, {0, true}});
}

template <typename Body>
std::string Failure(Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_CASE(RunsInEveryWay) {
  for (CudaDispatch dispatch :
       {CudaDispatch::kStreams, CudaDispatch::kCapturedGraph, CudaDispatch::kLinkedGraph}) {
    Counting kernels[4];
    CudaExecutor executor(TwoStreams(),
                          Diamond({&kernels[0], &kernels[1], &kernels[2], &kernels[3]}), dispatch);
    CHECK(executor.dispatch() == dispatch);
    CHECK(executor.why_no_graph().empty());
    for (int run = 0; run < 3; ++run) executor.Run();
    CHECK(executor.Profile().size() == 4);
    CHECK(executor.Time(2) >= 0);
    CHECK(executor.TimeLaunches(2) >= 0);
    for (const Counting& kernel : kernels) CHECK(kernel.launches > 0);
  }
}

TEST_CASE(FallsBackWithAReason) {
  Counting kernels[4];
  FailNext("cudaGraphInstantiate", 2);
  CudaExecutor executor(TwoStreams(), Diamond({&kernels[0], &kernels[1], &kernels[2], &kernels[3]}),
                        CudaDispatch::kLinkedGraph);
  CHECK(executor.dispatch() == CudaDispatch::kStreams);
  CHECK(executor.why_no_graph().find("cudaGraphInstantiate") != std::string::npos);
  executor.Run();
}

TEST_CASE(RefusesAPlanThatCannotWork) {
  Counting kernel;
  CHECK(Failure([&] {
          CudaExecutor(TwoStreams(), {{"a", &kernel, 2, {}}}, CudaDispatch::kStreams);
        }).find("`a` is planned on stream 2") != std::string::npos);
}

TEST_CASE(NamesWhatFails) {
  Counting good;
  Counting at_once(1);
  CHECK(Failure([&] {
          CudaExecutor(TwoStreams(), {{"bad", &at_once, 0, {}}}, CudaDispatch::kStreams);
        }) == "operator `bad` failed: on purpose");
  Counting while_captured(2);
  CudaExecutor executor(TwoStreams(), {{"bad", &while_captured, 0, {}}, {"good", &good, 1, {}}},
                        CudaDispatch::kCapturedGraph);
  CHECK(executor.why_no_graph() == "operator `bad` failed: on purpose");
  executor.Run();
}

TEST_CASE(AProfileThatFailsWaitsForAllStreams) {
  Counting good;
  Counting bad(2);
  CudaExecutor executor(TwoStreams(), {{"good", &good, 1, {}}, {"bad", &bad, 0, {}}},
                        CudaDispatch::kStreams);
  FailNext("cudaStreamSynchronize", 2);  // The only call before the error is the wait.
  CHECK(Failure([&] { executor.Profile(); }).find("then the GPU failed") != std::string::npos);
  executor.Run();
}

TEST_CASE(SharesStreamsAndEvents) {
  auto streams = TwoStreams();
  Counting kernels[4];
  for (int i = 0; i < 3; ++i) {
    CudaExecutor executor(streams, Diamond({&kernels[0], &kernels[1], &kernels[2], &kernels[3]}),
                          CudaDispatch::kCapturedGraph);
    executor.Run();
    CudaStreams::Lease lease(streams.get());
    CHECK(Failure([&] { executor.Run(); }).find("another thread") != std::string::npos);
  }
}

// A kernel that notices if another thread launches such a kernel at the same time.
class Alone : public CudaKernel {
 public:
  void Launch(const CudaStream&) override {
    if (++num_running > 1) was_alone = false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --num_running;
  }
  static inline std::atomic<int> num_running{0};
  static inline std::atomic<bool> was_alone{true};
};

TEST_CASE(KernelsAreTriedByOneThreadAtATime) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      Alone kernels[4];
      CudaExecutor executor(TwoStreams(),
                            Diamond({&kernels[0], &kernels[1], &kernels[2], &kernels[3]}),
                            CudaDispatch::kStreams);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(Alone::was_alone);
}

TEST_CASE(GivesEventsBackWhileAnotherThreadTakesSome) {
  auto streams = TwoStreams();
  Counting kernels[4];
  const auto ops = Diamond({&kernels[0], &kernels[1], &kernels[2], &kernels[3]});
  auto make = [&] { return std::make_unique<CudaExecutor>(streams, ops, CudaDispatch::kStreams); };
  for (int i = 0; i < 50; ++i) {
    auto last = make();
    std::thread other([&] { last.reset(); });
    make();
    other.join();
  }
}

TEST_CASE(CopiesBetweenGpus) {
  auto streams = std::make_shared<CudaStreams>(
      std::vector<tvm_interop::CudaStreamOptions>{{0, false}, {1, false}});
  CudaMemory here(0, 64);
  CudaMemory there(1, 64);
  const std::vector<int> sent{1, 2, 3, 4};
  std::vector<int> got(4);
  tvm_interop::CudaLoader loader(streams);
  loader.ToDevice(0, here.at(0), sent.data(), 16);
  PeerCopy copy(there.at(16), 1, here.at(0), 0, 16);
  CudaExecutor executor(streams, {{"copy", &copy, 1, {}}}, CudaDispatch::kCapturedGraph);
  CHECK(executor.why_no_graph().empty());
  executor.Run();
  loader.ToHost(1, got.data(), there.at(16), 16);
  CHECK(got == sent);
}

// Alternatives for `FastestOf` to choose from. An alternative launches as many kernels as its
// length says, and each kernel takes the fake GPU a microsecond.
class Alternatives {
 public:
  explicit Alternatives(std::vector<int> lengths_us)
      : launches(lengths_us.size()), lengths_us_(std::move(lengths_us)) {}

  // Chooses the fastest alternative. The launch number `fails_at` of the alternative `fails`
  // throws.
  tvm_interop::Fastest Choose(int fails = -1, int fails_at = 0) {
    static auto* const launch =
        FakeFunction<int(const char*, void*, void (*)(int64_t), int64_t)>("FakeCudaLaunch");
    CudaStreams streams({{0, false}});
    return tvm_interop::FastestOf(lengths_us_.size(), streams.stream(0), [&](size_t i) {
      if (++launches[i] == fails_at && static_cast<int>(i) == fails) {
        throw std::runtime_error("on purpose");
      }
      for (int us = 0; us < lengths_us_[i]; ++us) {
        CHECK_EQ(launch("piece", streams.stream(0).handle, nullptr, 0), 0);
      }
    });
  }

  std::vector<int> launches;  // The number of launches of each alternative so far.

 private:
  std::vector<int> lengths_us_;
};

// An alternative is first launched twice. Unless it is hopeless, it is measured in a CUDA graph,
// which launches it eight times more.
TEST_CASE(HopelessAlternativesAreLaunchedTwice) {
  Alternatives some({2000, 107, 2, 2, 109, 3});
  const tvm_interop::Fastest fastest = some.Choose();
  CHECK_EQ(fastest.index, size_t{2});
  CHECK(fastest.refusals.empty());
  CHECK((some.launches == std::vector<int>{2, 10, 10, 10, 2, 10}));
  // An alternative is hopeless if it takes longer than four times the shortest launch, here 100 us,
  // plus 100 us for the host.
  Alternatives longer({400, 499, 501, 100});
  CHECK_EQ(longer.Choose().index, size_t{3});
  CHECK((longer.launches == std::vector<int>{10, 10, 2, 10}));
}

TEST_CASE(SlowAlternativesAreChosenIfQuickOnesAreRefused) {
  for (int fails_at : {1, 2, 3}) {  // The third launch is captured.
    Alternatives some({900, 800, 2});
    const tvm_interop::Fastest fastest = some.Choose(2, fails_at);
    CHECK_EQ(fastest.index, size_t{1});
    CHECK_EQ(fastest.refusals.size(), size_t{1});
    CHECK_EQ(fastest.refusals[0].first, size_t{2});
    CHECK((some.launches == std::vector<int>{10, 10, fails_at}));
  }
  CHECK(Failure([] { Alternatives({1}).Choose(0, 2); }) == "on purpose");
  CHECK(Failure([] { Alternatives({}).Choose(); }) == "there is nothing to choose from");
}

}  // namespace

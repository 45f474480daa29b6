// Runs models whose kernels are those of `fake_kernels.cc`.

#include "runtime/model/instance.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cpu/scratch.h"
#include "runtime/model/error.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_artifact.h"

namespace {

using namespace tvm_interop;  // NOLINT: this file is about nothing else.

std::shared_ptr<Model> Load(const std::string& artifact) {
  return std::make_shared<Model>(*OpenMemory(artifact.data(), artifact.size()), LoadOptions());
}

std::shared_ptr<Model> Example() {
  static const std::string artifact = ArtifactOf(PlanText(), KernelCode());
  return Load(artifact);
}

std::string ErrorOf(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const ModelError& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "";
}

TEST_CASE(AModelRuns) {
  Instance instance(Example(), 0);
  for (int i = 0; i < 100; ++i) RunAndCheck(&instance, static_cast<float>(i));
}

// Whether a run reads inputs in place, without a copy. The inputs begin `shift` bytes after a
// multiple of 64.
bool ReadsInPlace(const std::shared_ptr<Model>& model, size_t shift) {
  Instance instance(model, 0);
  RunAndCheck(&instance, 5, shift);
  const float* const own = static_cast<float*>(instance.InputBuffer(0));
  const bool is_copied = std::any_of(own, own + kCount, [](float x) { return x != 0; });
  RunAndCheck(&instance, 6);
  return !is_copied;
}

TEST_CASE(KernelsOfOlderVersionsGetAlignedCopies) {
  CHECK(ReadsInPlace(Example(), 0));
  CHECK(!ReadsInPlace(Example(), 4));
}

TEST_CASE(InputsAreReadInPlaceAtEachMultipleOfTheElementsSize) {
  const std::string any = ArtifactOf(PlanText(), KernelCode(), R"( "unaligned_inputs": true,)");
  CHECK_EQ(Load(any)->InputAlignment(0, 0), sizeof(float));
  for (size_t shift = 0; shift < 64; shift += 4) CHECK(ReadsInPlace(Load(any), shift));
}

TEST_CASE(OwnBuffers) {
  Instance instance(Example(), 0);
  float* const x = static_cast<float*>(instance.InputBuffer(0));
  for (int64_t i = 0; i < kCount; ++i) x[i] = static_cast<float>(i);
  RunAndCheck(&instance, 7);  // Does not touch the buffer.
  instance.Run(nullptr, nullptr);
  CHECK(IsRight(static_cast<float*>(instance.OutputBuffer(0)),
                static_cast<float*>(instance.OutputBuffer(1)), 0));
  CHECK_EQ(instance.Profile(nullptr, nullptr).size(), size_t{5});
}

TEST_CASE(AnOutputMayShareMemoryWithAnInput) {
  Instance instance(Example(), 0);
  // D writes y and E reads x. D may end before E begins. If D wrote y to the memory of x, E could
  // then read y in place of x.
  const Buffer x, z;
  Fill(x, 3);
  const void* inputs[] = {x.data()};
  void* outputs[] = {x.data(), z.data()};
  instance.Run(inputs, outputs);
  CHECK(IsRight(x.data(), z.data(), 3));
}

TEST_CASE(AnInputThatIsReturnedMayBeOverwritten) {
  // The model also returns x. The memory of x gets y, which comes before x among the outputs.
  std::string plan = PlanText();
  const std::string outputs = R"("outputs": [5, 6], "arena_bytes")";
  plan.replace(plan.find(outputs), outputs.size(), R"("outputs": [5, 6, 0], "arena_bytes")");
  Instance instance(Load(ArtifactOf(plan, KernelCode())), 0);
  const Buffer x, z, returned;
  Fill(x, 3);
  const void* inputs[] = {x.data()};
  void* outputs_given[] = {x.data(), z.data(), returned.data()};
  instance.Run(inputs, outputs_given);
  CHECK(IsRight(x.data(), returned.data(), 3));
}

TEST_CASE(AFailingKernelSaysWhy) {
  Instance instance(Example(), 0);
  const std::string text = ErrorOf([&] { RunAndCheck(&instance, -1); }, ErrorCode::kExecution);
  CHECK(text.find("`E`") != std::string::npos);
  CHECK(text.find("failed: the input is negative") != std::string::npos);
  RunAndCheck(&instance, 1);
  CHECK(instance.model().run_counts(0).counts().exact == 1);  // The run that failed is not counted.
}

TEST_CASE(RunsOfAllInstancesAreCounted) {
  const std::shared_ptr<Model> model = Example();
  Instance one(model, 0), other(model, 0);
  one.Run(nullptr, nullptr);
  other.Run(nullptr, nullptr);
  other.Profile(nullptr, nullptr);
  const RunCounts::Counts counts = model->run_counts(0).counts();
  CHECK(counts.exact == 2 && counts.filled_up == 0);
  CHECK(counts.rows_given == 2 && counts.rows_computed == 2);
}

TEST_CASE(ManyThreadsCount) {
  RunCounts counted;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) counted.Count(i % 2 == 0 ? 3 : 8, 8);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const RunCounts::Counts counts = counted.counts();
  CHECK(counts.exact == 2000 && counts.filled_up == 2000);
  CHECK(counts.rows_given == 22000 && counts.rows_computed == 32000);
}

TEST_CASE(ModelsWithTheSameWeightsShareThem) {
  const std::string artifact = ArtifactOf(PlanText(), KernelCode());
  const std::shared_ptr<Model> one = Load(artifact), other = Load(artifact);
  CHECK(!one->weights(0).empty());
  CHECK(one->weights(0) == other->weights(0));
}

TEST_CASE(InstancesRunSideBySide) {
  const std::shared_ptr<Model> model = Example();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&model, t] {
      Instance instance(model, 0);
      for (int i = 0; i < 50; ++i) RunAndCheck(&instance, static_cast<float>(10 * t + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE(InstancesTakeTurnsWithTheMemoryBetweenOperators) {
  const std::shared_ptr<Model> model = Example();
  const size_t before = ScratchNbytes();
  Instance first(model, 0);
  RunAndCheck(&first, 1);
  const size_t of_one = ScratchNbytes() - before;
  CHECK(of_one > 0);
  Instance second(model, 0), third(model, 0);
  for (int i = 0; i < 3; ++i) {
    for (Instance* instance : {&first, &second, &third}) {
      RunAndCheck(instance, static_cast<float>(i));
      instance->Run(nullptr, nullptr);  // on its own buffers
      CHECK(instance->Time(2) > 0);
    }
  }
  CHECK_EQ(ScratchNbytes() - before, of_one);
}

TEST_CASE(TheMemoryBetweenOperatorsMayMove) {
  Instance instance(Example(), 0);
  RunAndCheck(&instance, 1);
  const ScratchNeed same(static_cast<size_t>(instance.plan().arena_bytes), ScratchUser::kInstance);
  for (int i = 0; i < 3; ++i) {
    const ScratchLease taken(same);
    std::memset(taken.data(), 0xff, same.nbytes());
    RunAndCheck(&instance, static_cast<float>(i));
    for (size_t byte = 0; byte < same.nbytes(); ++byte) CHECK_EQ(taken.data()[byte], char{-1});
  }
  RunAndCheck(&instance, 4);
}

TEST_CASE(AnInstanceKeepsItsMemoryUntilItsRunEnds) {
  // In the middle of a run, our runtime asks the program's pool for threads (guests). At this
  // moment the test takes a block of scratch memory. The run must not write into this block.
  bool is_running = false;
  ScratchNeed same(1, ScratchUser::kInstance);
  std::unique_ptr<ScratchLease> taken;
  const auto take = [&](void (*)(void*), void*) {
    if (!is_running || taken != nullptr) return false;
    taken = std::make_unique<ScratchLease>(same);
    std::memset(taken->data(), 0xff, same.nbytes());
    return false;
  };
  Instance instance(Example(), 0, ThreadPool::OfGuests({2, take}));
  same.Set(static_cast<size_t>(instance.plan().arena_bytes));
  instance.Run(nullptr, nullptr);
  const std::function<void()> ways[] = {[&] { instance.Run(nullptr, nullptr); },
                                        [&] { instance.Profile(nullptr, nullptr); },
                                        [&] { instance.Time(1); }};
  for (const auto& run : ways) {
    // If runs follow each other quickly, not every run asks the program's pool for guests.
    for (int i = 0; i < 1000 && taken == nullptr; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      is_running = true;
      run();
      is_running = false;
    }
    CHECK(taken != nullptr);
    for (size_t byte = 0; byte < same.nbytes(); ++byte) CHECK_EQ(taken->data()[byte], char{-1});
    taken.reset();
  }
}

TEST_CASE(OneInstanceRunsInOneThreadAtATime) {
  Instance instance(Example(), 0);
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const std::string text =
            ErrorOf([&] { RunAndCheck(&instance, static_cast<float>(i)); }, ErrorCode::kExecution);
        if (text.find("another thread is running this instance") != std::string::npos) ++refused;
        CHECK(text.empty() || refused > 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE(AForkedChildGoesOn) {
#if !defined(__SANITIZE_THREAD__)
  Instance instance(Example(), 0);
  RunAndCheck(&instance, 1);
  const pid_t child = fork();
  if (child == 0) {
    RunAndCheck(&instance, 2);
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  RunAndCheck(&instance, 3);
#endif
}

TEST_CASE(CodeWithUnknownImportsIsRefused) {
  std::string code = KernelCode();
  const std::string known = "TVMFFIErrorSetRaisedFromCStrParts";
  for (size_t at = code.find(known); at != std::string::npos; at = code.find(known, at + 1)) {
    code.replace(at, 6, "TVMXYZ");
  }
  const std::string artifact = ArtifactOf(PlanText(), code);
  const std::string text = ErrorOf([&] { Instance(Load(artifact), 0); }, ErrorCode::kUnsupported);
  CHECK(text.find("`TVMXYZErrorSetRaisedFromCStrParts`") != std::string::npos);
  const std::string none = ArtifactOf(PlanText(), "no library");
  CHECK(ErrorOf([&] { Instance(Load(none), 0); }, ErrorCode::kUnsupported)
            .find("not a shared library") != std::string::npos);
}

TEST_CASE(AnUnsafePlanIsRefused) {
  std::string plan = PlanText();
  const std::string wait = R"("waits": [1])";
  plan.replace(plan.find(wait), wait.size(), R"("waits": [])");
  const std::string artifact = ArtifactOf(plan, "");
  const std::string text = ErrorOf([&] { Load(artifact); }, ErrorCode::kArtifact);
  CHECK(text.find("nothing orders the two") != std::string::npos);
}

}  // namespace

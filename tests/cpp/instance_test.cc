// Models that run on kernels of `fake_kernels.cc`.

#include "runtime/model/instance.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/core/aligned_memory.h"
#include "runtime/model/error.h"
#include "runtime/model/sha256.h"

namespace {

using namespace tvm_interop;  // NOLINT: this file is about nothing else.

constexpr int64_t kCount = 1000;  // numbers in each tensor
constexpr int64_t kNbytes = 4 * kCount;

std::string KernelCode() {
  std::ifstream file(FAKE_KERNELS, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Octal(uint64_t number, int digits) {
  std::string text;
  for (int i = 0; i < digits; ++i, number >>= 3) text.insert(0, 1, "01234567"[number & 7]);
  return text;
}

std::string TarMember(const std::string& name, const std::string& data) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, 11, Octal(data.size(), 11));
  header[156] = '0';
  header.replace(257, 8, "ustar  \0", 8);
  header.replace(148, 8, "        ");
  uint64_t sum = 0;
  for (unsigned char byte : header) sum += byte;
  header.replace(148, 7, Octal(sum, 6) + '\0');
  return header + data + std::string((512 - data.size() % 512) % 512, '\0');
}

std::string Digest(const std::string& data) {
  Sha256 digest;
  digest.Update(data.data(), data.size());
  return digest.Digest();
}

std::string Value(const std::string& name, const std::string& storage, const std::string& more) {
  return R"({"name": ")" + name + R"(", "shape": [1000], "dtype": "float32", "storage": ")" +
         storage + "\"" + more + "}";
}

std::string Operator(const std::string& name, const std::string& kernel, const std::string& inputs,
                     int output, int stream, const std::string& waits = "") {
  return R"({"name": ")" + name + R"(", "kernel": ")" + kernel + R"(", "inputs": [)" + inputs +
         R"(], "outputs": [)" + std::to_string(output) + R"(], "stream": )" +
         std::to_string(stream) + R"(, "waits": [)" + waits + "]}";
}

// y = 2 * x + (x + 1) + w and z = checked(x), on two streams.
std::string PlanText() {
  return R"({"streams": [{"device": "cpu:0", "threads": 1}, {"device": "cpu:0", "threads": 1}],)"
         R"( "values": [)" +
         Value("x", "input", "") + ", " + Value("w", "weight", "") + ", " +
         Value("a", "arena", R"(, "offset": 0)") + ", " +
         Value("b", "arena", R"(, "offset": 4032)") + ", " +
         Value("c", "arena", R"(, "offset": 8064)") + ", " + Value("y", "output", "") + ", " +
         Value("z", "output", "") + R"(], "operators": [)" + Operator("A", "twice", "0", 2, 0) +
         ", " + Operator("B", "add_one", "0", 3, 1) + ", " +
         Operator("C", "add", "2, 3", 4, 0, "1") + ", " + Operator("D", "add", "4, 1", 5, 0) +
         ", " + Operator("E", "checked", "0", 6, 1) +
         R"(], "inputs": [0], "outputs": [5, 6], "arena_bytes": 12096, "parallel_kernels": true})";
}

std::string ArtifactOf(const std::string& plan, const std::string& kernels) {
  const std::string schedule =
      R"({"format": "tvm_interop.schedule", "version": 2, "scheduler": "by hand",)"
      R"( "operators": ["A", "B", "C", "D", "E"], "streams": [["A", "C", "D"], ["B", "E"]]})";
  std::string weights(kNbytes, '\0');
  for (int64_t i = 0; i < kCount; ++i) reinterpret_cast<float*>(weights.data())[i] = 100;
  const std::string manifest =
      R"({"tvm_interop_version": "0", "tvm_version": "0", "target": "llvm",)"
      R"( "scheduler": "by hand", "structural_hash": "0", "weights": {"1": 0}, "sha256": {)"
      R"("plan.json": ")" +
      Digest(plan) + R"(", "schedule.json": ")" + Digest(schedule) + R"(", "kernels.so": ")" +
      Digest(kernels) + R"(", "weights.bin": ")" + Digest(weights) + "\"}}";
  return TarMember("manifest.json", manifest) + TarMember("plan.json", plan) +
         TarMember("schedule.json", schedule) + TarMember("kernels.so", kernels) +
         TarMember("weights.bin", weights) + std::string(1024, '\0');
}

std::shared_ptr<Model> Load(const std::string& artifact) {
  return std::make_shared<Model>(*OpenMemory(artifact.data(), artifact.size()), LoadOptions());
}

std::shared_ptr<Model> Example() {
  static const std::string artifact = ArtifactOf(PlanText(), KernelCode());
  return Load(artifact);
}

// Memory for a tensor, at a multiple of 64 plus `shift` bytes.
struct Buffer {
  explicit Buffer(size_t shift = 0) : memory(AlignedZeros(kNbytes + shift)), shift(shift) {}
  float* data() const { return reinterpret_cast<float*>(memory.get() + shift); }
  std::shared_ptr<char> memory;
  size_t shift;
};

void Fill(const Buffer& buffer, float first) {
  for (int64_t i = 0; i < kCount; ++i) buffer.data()[i] = first + static_cast<float>(i);
}

bool IsRight(const float* y, const float* z, float first) {
  for (int64_t i = 0; i < kCount; ++i) {
    const float x = first + static_cast<float>(i);
    if (y[i] != 3 * x + 101 || z[i] != x) return false;
  }
  return true;
}

void RunAndCheck(Instance* instance, float first, size_t shift = 0) {
  const Buffer x(shift), y(shift), z(shift);
  Fill(x, first);
  const void* inputs[] = {x.data()};
  void* outputs[] = {y.data(), z.data()};
  instance->Run(inputs, outputs);
  CHECK(IsRight(y.data(), z.data(), first));
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

TEST_CASE(MemoryThatIsNotAlignedIsCopied) {
  Instance instance(Example(), 0);
  RunAndCheck(&instance, 5, 4);
  RunAndCheck(&instance, 6);
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
  // D writes y and E reads x. If y were written to the memory of x at once, E could read y in place
  // of x, because D may end before E begins.
  const Buffer x, z;
  Fill(x, 3);
  const void* inputs[] = {x.data()};
  void* outputs[] = {x.data(), z.data()};
  instance.Run(inputs, outputs);
  CHECK(IsRight(x.data(), z.data(), 3));
}

TEST_CASE(AFailingKernelSaysWhy) {
  Instance instance(Example(), 0);
  const std::string text = ErrorOf([&] { RunAndCheck(&instance, -1); }, ErrorCode::kExecution);
  CHECK(text.find("`E`") != std::string::npos);
  CHECK(text.find("failed: the input is negative") != std::string::npos);
  RunAndCheck(&instance, 1);
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
            .find("no shared library") != std::string::npos);
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

// An artifact with the kernels of `fake_kernels.cc`, and the results that it must give.
#ifndef TESTS_CPP_FAKE_ARTIFACT_H_
#define TESTS_CPP_FAKE_ARTIFACT_H_

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "runtime/core/aligned_memory.h"
#include "runtime/model/sha256.h"
#include "tests/cpp/check.h"

namespace tvm_interop {

constexpr int64_t kCount = 1000;  // numbers in each tensor
constexpr int64_t kNbytes = 4 * kCount;

inline std::string KernelCode() {
  std::ifstream file(FAKE_KERNELS, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string Octal(uint64_t number, int digits) {
  std::string text;
  for (int i = 0; i < digits; ++i, number >>= 3) text.insert(0, 1, "01234567"[number & 7]);
  return text;
}

inline std::string TarMember(const std::string& name, const std::string& data) {
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

inline std::string Digest(const std::string& data) {
  Sha256 digest;
  digest.Update(data.data(), data.size());
  return digest.Digest();
}

inline std::string Value(const std::string& name, const std::string& storage,
                         const std::string& more) {
  return R"({"name": ")" + name + R"(", "shape": [1000], "dtype": "float32", "storage": ")" +
         storage + "\"" + more + "}";
}

inline std::string Operator(const std::string& name, const std::string& kernel,
                            const std::string& inputs, int output, int stream,
                            const std::string& waits = "") {
  return R"({"name": ")" + name + R"(", "kernel": ")" + kernel + R"(", "inputs": [)" + inputs +
         R"(], "outputs": [)" + std::to_string(output) + R"(], "stream": )" +
         std::to_string(stream) + R"(, "waits": [)" + waits + "]}";
}

// A plan for y = 2 * x + (x + 1) + w and z = checked(x), on two streams. The kernel `checked` fails
// if the first number of x is negative.
inline std::string PlanText() {
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

inline std::string ArtifactOf(const std::string& plan, const std::string& kernels,
                              const std::string& more_of_manifest = "") {
  const std::string schedule =
      R"({"format": "tvm_interop.schedule", "version": 2, "scheduler": "by hand",)"
      R"( "operators": ["A", "B", "C", "D", "E"], "streams": [["A", "C", "D"], ["B", "E"]]})";
  std::string weights(kNbytes, '\0');
  for (int64_t i = 0; i < kCount; ++i) reinterpret_cast<float*>(weights.data())[i] = 100;
  const std::string manifest =
      R"({"tvm_interop_version": "0", "tvm_version": "0", "target": "llvm",)"
      R"( "scheduler": "by hand", "structural_hash": "0", "weights": {"1": 0},)" +
      more_of_manifest +
      R"( "sha256": {)"
      R"("plan.json": ")" +
      Digest(plan) + R"(", "schedule.json": ")" + Digest(schedule) + R"(", "kernels.so": ")" +
      Digest(kernels) + R"(", "weights.bin": ")" + Digest(weights) + "\"}}";
  return TarMember("manifest.json", manifest) + TarMember("plan.json", plan) +
         TarMember("schedule.json", schedule) + TarMember("kernels.so", kernels) +
         TarMember("weights.bin", weights) + std::string(1024, '\0');
}

// Memory for a tensor, at a multiple of 64 plus `shift` bytes.
struct Buffer {
  explicit Buffer(size_t shift = 0) : memory(AlignedZeros(kNbytes + shift)), shift(shift) {}
  float* data() const { return reinterpret_cast<float*>(memory.get() + shift); }
  std::shared_ptr<char> memory;
  size_t shift;
};

inline void Fill(const Buffer& buffer, float first) {
  for (int64_t i = 0; i < kCount; ++i) buffer.data()[i] = first + static_cast<float>(i);
}

inline bool IsRight(const float* y, const float* z, float first) {
  for (int64_t i = 0; i < kCount; ++i) {
    const float x = first + static_cast<float>(i);
    if (y[i] != 3 * x + 101 || z[i] != x) return false;
  }
  return true;
}

// Runs an instance of any class on memory that is shifted by `shift` bytes, and checks its outputs.
template <typename AnyInstance>
void RunAndCheck(AnyInstance* instance, float first, size_t shift = 0) {
  const Buffer x(shift), y(shift), z(shift);
  Fill(x, first);
  const void* inputs[] = {x.data()};
  void* outputs[] = {y.data(), z.data()};
  instance->Run(inputs, outputs);
  CHECK(IsRight(y.data(), z.data(), first));
}

}  // namespace tvm_interop

#endif  // TESTS_CPP_FAKE_ARTIFACT_H_

// The code that the fake cuDNN and the fake cuBLASLt share. Their kernels compute on the host, and
// log which memory they read and write.
#ifndef TESTS_FAKE_CUDA_FAKE_LIBRARY_H_
#define TESTS_FAKE_CUDA_FAKE_LIBRARY_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fake_cuda.h"

namespace fake_cuda {

// Each function of a library that works on the GPU begins with this text. It returns `failed` if
// CUDA refuses every call of this process.
#define FAKE_LIBRARY_CALL(name, failed)                              \
  const ::fake_cuda::Call call(name);                                \
  if (call.process_status() != ::fake_cuda::kSuccess) return failed; \
  if (call.injected() != ::fake_cuda::kSuccess) return call.injected()

// The most multiplications of a fake kernel. To save time, a kernel that would need more computes
// nothing. Tests of whole networks look only at the order in which kernels run.
constexpr int64_t kMostMultiplications = 300'000;

// An array of float32 or float16 numbers in memory.
class Numbers {
 public:
  Numbers(const void* data, bool is_half) : data_(const_cast<void*>(data)), is_half_(is_half) {}
  float at(int64_t i) const {
    return is_half_ ? static_cast<float>(static_cast<_Float16*>(data_)[i])
                    : static_cast<float*>(data_)[i];
  }
  void set(int64_t i, float number) const {
    if (is_half_) {
      static_cast<_Float16*>(data_)[i] = static_cast<_Float16>(number);
    } else {
      static_cast<float*>(data_)[i] = number;
    }
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void* data_;
  bool is_half_;
};

// A range of memory that a kernel reads or writes.
struct Piece {
  const void* address;
  int64_t nbytes;
};

inline std::string Text(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces) {
    if (piece.nbytes == 0) continue;
    text += (text.empty() ? "" : " ") + std::to_string(reinterpret_cast<intptr_t>(piece.address)) +
            ":" + std::to_string(piece.nbytes);
  }
  return text;
}

// Returns, for each algorithm of a library, the milliseconds by which it is slower than an ordinary
// kernel.
static std::map<int64_t, double>& ExtraTimes() {
  static std::map<int64_t, double> times;
  return times;
}

// Returns the algorithms that can be planned but fail at their launch, each with the status that
// the library gives.
static std::map<int64_t, int>& LateRefusals() {
  static std::map<int64_t, int> refusals;
  return refusals;
}

struct LibraryLaunch {
  const char* call;
  int64_t algorithm;
  int64_t math;  // The math type of the products, as the library numbers it.
  std::vector<Piece> reads;
  std::vector<Piece> writes;
  Piece workspace;
};

inline int Launch(const LibraryLaunch& launch, Stream* stream, std::function<void()> compute) {
  Line("launch")
      .Add("kernel", std::string(launch.call))
      .Add("stream", int64_t{stream->id})
      .Add("device", int64_t{CurrentDevice()})
      .Add("algorithm", launch.algorithm)
      .Add("math", launch.math)
      .Add("reads", Text(launch.reads))
      .Add("writes", Text(launch.writes))
      .Add("workspace", Text({launch.workspace}));
  const double extra_ms = ExtraTimes()[launch.algorithm];
  const Piece scratch = launch.workspace;
  return Launch(stream, launch.call, [extra_ms, scratch, compute = std::move(compute)] {
    TakeTime(extra_ms);
    if (scratch.nbytes > 0) std::memset(const_cast<void*>(scratch.address), 0x5a, scratch.nbytes);
    compute();
  });
}

}  // namespace fake_cuda

#endif  // TESTS_FAKE_CUDA_FAKE_LIBRARY_H_

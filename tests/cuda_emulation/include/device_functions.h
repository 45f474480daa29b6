// The words and functions of CUDA that TVM's kernels use: qualifiers, barriers, shuffles, votes,
// atomic operations and mathematics.
#pragma once

#include <math.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "small_floats.h"
#include "threads.h"
#include "vector_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)  // `LaunchSetting` has the bounds.
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

// Barriers. The line number in the source identifies the barrier at which a thread waits.
inline void __syncthreads(int line = __builtin_LINE()) {
  cuda_emulation::Wait(cuda_emulation::WaitsFor::kBarrier, line);
}
inline void __threadfence() {}  // Only one thread runs at a time.
inline void __threadfence_block() {}

namespace cuda_emulation {

constexpr unsigned kAllLanes = 0xFFFFFFFF;

// Waits until all lanes of `mask` are at this line of the source. A mask of 0 stands for the lanes
// that are at this line already. Each lane then sends the first `bytes` bytes of its `value`, and
// replaces them by the bytes that the lane `source` sent.
inline const Exchange& Meet(unsigned mask, bool vote, int source, void* value, std::size_t bytes,
                            int line) {
  Exchange& exchange = current->exchange;
  if (mask != 0 && (mask >> Lane() & 1) == 0) {
    Fail("at line " + std::to_string(line) + ", the mask of a lane leaves out the lane itself");
  }
  exchange.mask = mask;
  exchange.vote = vote;
  exchange.source = source;
  if (bytes != 0) std::memcpy(exchange.sent, value, bytes);
  Wait(WaitsFor::kWarp, line);
  if (bytes != 0) std::memcpy(value, exchange.received, bytes);
  return exchange;
}

template <typename T>
T Shuffle(unsigned mask, T value, int source, int line) {
  static_assert(sizeof(T) <= kMostBytesSent, "a shuffle of so many bytes is not emulated");
  Meet(mask, false, source, &value, sizeof(T), line);
  return value;
}

inline const Exchange& Vote(unsigned mask, bool vote, int line) {
  return Meet(mask, vote, Lane(), nullptr, 0, line);
}

// Returns the lane that the calling lane reads from. This is `wanted` if it lies in the caller's
// part of the warp, from `first` to `last`. Otherwise it is the caller itself.
inline int LaneWithin(int wanted, int first, int last) {
  return wanted < first || wanted > last ? Lane() : wanted;
}

inline int FirstOfPart(int width) { return Lane() / width * width; }

}  // namespace cuda_emulation

inline void __syncwarp(unsigned mask = cuda_emulation::kAllLanes, int line = __builtin_LINE()) {
  cuda_emulation::Vote(mask, false, line);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE()) {
  const int first = cuda_emulation::FirstOfPart(width);
  return cuda_emulation::Shuffle(mask, value, first + (lane & (width - 1)), line);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   int line = __builtin_LINE()) {
  const int first = cuda_emulation::FirstOfPart(width);
  const int wanted = cuda_emulation::Lane() + static_cast<int>(by);
  const int source = cuda_emulation::LaneWithin(wanted, first, first + width - 1);
  return cuda_emulation::Shuffle(mask, value, source, line);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) {
  const int first = cuda_emulation::FirstOfPart(width);
  const int wanted = cuda_emulation::Lane() - static_cast<int>(by);
  const int source = cuda_emulation::LaneWithin(wanted, first, first + width - 1);
  return cuda_emulation::Shuffle(mask, value, source, line);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, int line = __builtin_LINE()) {
  const int last = cuda_emulation::FirstOfPart(width) + width - 1;
  const int source = cuda_emulation::LaneWithin(cuda_emulation::Lane() ^ with, 0, last);
  return cuda_emulation::Shuffle(mask, value, source, line);
}

inline unsigned __activemask(int line = __builtin_LINE()) {
  return cuda_emulation::Vote(0, false, line).lanes;
}
inline unsigned __ballot_sync(unsigned mask, bool vote, int line = __builtin_LINE()) {
  return cuda_emulation::Vote(mask, vote, line).votes;
}
inline int __any_sync(unsigned mask, bool vote, int line = __builtin_LINE()) {
  return cuda_emulation::Vote(mask, vote, line).votes != 0;
}
inline int __all_sync(unsigned mask, bool vote, int line = __builtin_LINE()) {
  const cuda_emulation::Exchange& exchange = cuda_emulation::Vote(mask, vote, line);
  return exchange.votes == exchange.lanes;
}

// Atomic operations: they return the old value. Only one thread runs at a time.
template <typename T, typename New>
T cuda_emulation_exchange(T* address, New value) {
  const T old = *address;
  *address = static_cast<T>(value);
  return old;
}
template <typename T>
T atomicAdd(T* address, T value) {
  return cuda_emulation_exchange(address, *address + value);
}
template <typename T>
T atomicMax(T* address, T value) {
  return cuda_emulation_exchange(address, std::max(*address, value));
}
template <typename T>
T atomicMin(T* address, T value) {
  return cuda_emulation_exchange(address, std::min(*address, value));
}
template <typename T>
T atomicExch(T* address, T value) {
  return cuda_emulation_exchange(address, value);
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  return cuda_emulation_exchange(address, *address == expected ? value : *address);
}

// `max` and `min` return the other number if one of two floats is NaN.
template <typename A, typename B,
          typename = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B,
          typename = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}

using std::isfinite;
using std::isinf;
using std::isnan;

// In the emulation, CUDA's fast functions, such as `__expf`, are as exact as functions like `expf`.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }

namespace cuda_emulation {

template <typename To, typename From>
To BitCast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

}  // namespace cuda_emulation

inline float __int_as_float(int x) { return cuda_emulation::BitCast<float>(x); }
inline int __float_as_int(float x) { return cuda_emulation::BitCast<int>(x); }
inline float __uint_as_float(unsigned x) { return cuda_emulation::BitCast<float>(x); }
inline unsigned __float_as_uint(float x) { return cuda_emulation::BitCast<unsigned>(x); }
inline double __longlong_as_double(long long x) { return cuda_emulation::BitCast<double>(x); }
inline long long __double_as_longlong(double x) { return cuda_emulation::BitCast<long long>(x); }

template <typename T>
T __ldg(const T* address) {
  return *address;
}

// The sum of `sum` and the products of four pairs of bytes.
inline int __dp4a(int a, int b, int sum) {
  for (int shift = 0; shift < 32; shift += 8) {
    sum += static_cast<std::int8_t>(a >> shift) * static_cast<std::int8_t>(b >> shift);
  }
  return sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  for (int shift = 0; shift < 32; shift += 8) sum += (a >> shift & 0xFF) * (b >> shift & 0xFF);
  return sum;
}

// CUDA's vector types, such as `float4`, with CUDA's sizes and alignments.
#pragma once

#include <cstdint>

// Defines TYPE1 to TYPE4 and the functions that make them.
#define CUDA_EMULATION_VECTORS(T, Name, Align2, Align4)              \
  struct Name##1 { T x; };                                           \
  struct alignas(Align2) Name##2 { T x, y; };                        \
  struct Name##3 { T x, y, z; };                                     \
  struct alignas(Align4) Name##4 { T x, y, z, w; };                  \
  inline Name##1 make_##Name##1(T x) { return {x}; }                 \
  inline Name##2 make_##Name##2(T x, T y) { return {x, y}; }         \
  inline Name##3 make_##Name##3(T x, T y, T z) { return {x, y, z}; } \
  inline Name##4 make_##Name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

CUDA_EMULATION_VECTORS(signed char, char, 2, 4)
CUDA_EMULATION_VECTORS(unsigned char, uchar, 2, 4)
CUDA_EMULATION_VECTORS(short, short, 4, 8)
CUDA_EMULATION_VECTORS(unsigned short, ushort, 4, 8)
CUDA_EMULATION_VECTORS(int, int, 8, 16)
CUDA_EMULATION_VECTORS(unsigned, uint, 8, 16)
CUDA_EMULATION_VECTORS(long, long, 16, 16)
CUDA_EMULATION_VECTORS(unsigned long, ulong, 16, 16)
CUDA_EMULATION_VECTORS(long long, longlong, 16, 16)
CUDA_EMULATION_VECTORS(unsigned long long, ulonglong, 16, 16)
CUDA_EMULATION_VECTORS(float, float, 8, 16)
CUDA_EMULATION_VECTORS(double, double, 16, 16)

#undef CUDA_EMULATION_VECTORS

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

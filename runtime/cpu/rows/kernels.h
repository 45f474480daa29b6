#ifndef RUNTIME_CPU_ROWS_KERNELS_H_
#define RUNTIME_CPU_ROWS_KERNELS_H_

// Files that are compiled for newer CPUs include this header. So it must not include headers with
// inline functions: the linker could keep a copy of such a function that older CPUs cannot run.
#include <cstdint>

#include "runtime/cpu/vectors/last.h"

namespace tvm_interop {
namespace rows {

// The matrix is packed in groups of `kColumns` columns. In memory, the rows of a group lie one
// after another. The last group has the columns that remain, and zeros fill it up to a multiple of
// `kStep` columns.
constexpr int64_t kColumns = 64;
constexpr int64_t kStep = 16;

// A product has at most this many rows.
constexpr int64_t kMostRows = 16;

// The product of a few rows and a matrix.
struct Product {
  const float* left = nullptr;
  const float* packed = nullptr;
  const float* bias = nullptr;    // Null if there is no bias.
  const float* addend = nullptr;  // Null if nothing is added.
  float* result = nullptr;
  int64_t rows = 1;     // Rows of the left matrix and of the result, at most `kMostRows`.
  int64_t terms = 0;    // Columns of the left matrix, and rows of the right matrix.
  int64_t columns = 0;  // Columns of the right matrix and of the result.
  Last last = Last::kNothing;
  float clip_low = 0, clip_high = 0;
};

// Computes the columns of the groups from `begin` to `end`.
using Compute = void (*)(const Product& product, int64_t begin, int64_t end);

// The kernels for CPUs with AVX-512, and for CPUs with AVX2 and FMA. Null if this library was
// compiled for CPUs of another architecture than x86-64.
Compute Avx512Compute();
Compute Avx2Compute();

}  // namespace rows
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ROWS_KERNELS_H_

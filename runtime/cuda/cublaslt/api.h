#ifndef RUNTIME_CUDA_CUBLASLT_API_H_
#define RUNTIME_CUDA_CUBLASLT_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/cuda/api.h"

namespace tvm_interop {
namespace cublaslt {

// The part of cuBLASLt 13's C interface that we use, under our own names. It consists of handles,
// the numbers of enumerators, and functions that are found at run time. Neither cuBLASLt's headers
// nor its library are needed to build this project.

using Handle = struct HandleObject*;
using MatmulDesc = struct MatmulDescObject*;
using MatrixLayout = struct MatrixLayoutObject*;
using Preference = struct PreferenceObject*;

constexpr size_t kVersion = 13;

enum Status : int { kSuccess = 0 };
enum MatrixType : int { kFloat = 0, kHalf = 2 };
enum ComputeType : int { kCompute32 = 68, kCompute32FastTf32 = 77 };
enum MatmulAttribute : int { kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute : int { kBatchCount = 5, kStridedBatchOffset = 6 };
enum PreferenceAttribute : int {
  kMostWorkspaceBytes = 1,
  kReductionSchemes = 3,
  kAlignmentA = 5,
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
};
enum Epilogue : uint32_t { kNothing = 1, kRelu = 2, kBias = 4, kReluBias = 6 };
// How partial sums are added up if cuBLASLt divides the sums of a product among several blocks
// (split-K). `kInComputeType` means that a kernel adds them up afterwards, in float32.
enum ReductionScheme : uint32_t { kInComputeType = 2 };

struct Algorithm {
  uint64_t data[8];
};

struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_nbytes;
  int status;
  float waves;
  int reserved[4];
};

#define TVM_INTEROP_CUBLASLT_FUNCTIONS(F)                                                       \
  F(size_t, GetVersion, ())                                                                     \
  F(const char*, GetStatusString, (int status))                                                 \
  F(int, Create, (Handle*))                                                                     \
  F(int, Destroy, (Handle))                                                                     \
  F(int, MatmulDescCreate, (MatmulDesc*, int compute_type, int scale_type))                     \
  F(int, MatmulDescSetAttribute, (MatmulDesc, int attribute, const void* value, size_t nbytes)) \
  F(int, MatmulDescDestroy, (MatmulDesc))                                                       \
  F(int, MatrixLayoutCreate,                                                                    \
    (MatrixLayout*, int type, uint64_t rows, uint64_t columns, int64_t leading_dimension))      \
  F(int, MatrixLayoutSetAttribute,                                                              \
    (MatrixLayout, int attribute, const void* value, size_t nbytes))                            \
  F(int, MatrixLayoutDestroy, (MatrixLayout))                                                   \
  F(int, MatmulPreferenceCreate, (Preference*))                                                 \
  F(int, MatmulPreferenceSetAttribute,                                                          \
    (Preference, int attribute, const void* value, size_t nbytes))                              \
  F(int, MatmulPreferenceDestroy, (Preference))                                                 \
  F(int, MatmulAlgoGetHeuristic,                                                                \
    (Handle, MatmulDesc, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,        \
     Preference, int most, HeuristicResult*, int* number))                                      \
  F(int, Matmul,                                                                                \
    (Handle, MatmulDesc, const void* alpha, const void* a, MatrixLayout, const void* b,         \
     MatrixLayout, const void* beta, const void* c, MatrixLayout, void* d, MatrixLayout,        \
     const Algorithm*, void* workspace, size_t workspace_nbytes, cuda::Stream))

// The functions of cuBLASLt. For example, `api.Create` is `cublasLtCreate`.
struct Api {
#define TVM_INTEROP_DECLARE(result, name, args) result(*name) args = nullptr;
  TVM_INTEROP_CUBLASLT_FUNCTIONS(TVM_INTEROP_DECLARE)
#undef TVM_INTEROP_DECLARE

  // Loads the library and never unloads it. Throws std::runtime_error with the reason if the
  // library cannot be used.
  static Api Load(const std::string& path);
};

}  // namespace cublaslt
}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_CUBLASLT_API_H_

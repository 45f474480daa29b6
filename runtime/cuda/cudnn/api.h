#ifndef RUNTIME_CUDA_CUDNN_API_H_
#define RUNTIME_CUDA_CUDNN_API_H_

#include <cstddef>
#include <string>

#include "runtime/cuda/api.h"

namespace tvm_interop {
namespace cudnn {

// The part of cuDNN 9's C interface that we use, under our own names. It consists of handles, the
// numbers of enumerators, and functions that are found at run time. cuDNN keeps all of these in
// every release 9.x. Neither cuDNN's headers nor its library are needed to build this project.

using Handle = struct HandleObject*;
using TensorDesc = struct TensorDescObject*;
using FilterDesc = struct FilterDescObject*;
using ConvolutionDesc = struct ConvolutionDescObject*;
using ActivationDesc = struct ActivationDescObject*;

constexpr size_t kVersion = 9;

enum Status : int { kSuccess = 0 };
enum TensorType : int { kFloat = 0, kHalf = 2 };
enum TensorFormat : int { kNchw = 0 };
enum ConvolutionMode : int { kCrossCorrelation = 1 };
// The arithmetic that cuDNN may use for products. `kDefaultMath` rounds float32 to TF32 on GPUs
// that have it.
// `kTensorOpMathAllowConversion` rounds float32 to float16.
enum MathType : int {
  kDefaultMath = 0,
  kTensorOpMath = 1,
  kTensorOpMathAllowConversion = 2,
  kFmaMath = 3
};
enum ActivationMode : int { kRelu = 1, kIdentity = 5 };
// Says how an activation treats NaN. This is the only value that cuDNN's fused convolution accepts.
enum NanPropagation : int { kNotPropagateNan = 0 };
enum Determinism : int { kDeterministic = 1 };
enum ForwardAlgorithm : int { kImplicitPrecompGemm = 1 };
constexpr int kNumForwardAlgorithms = 8;

struct ForwardAlgorithmPerf {
  int algorithm;
  int status;
  float time_ms;
  size_t workspace_nbytes;
  int determinism;
  int math_type;
  int reserved[3];
};

#define TVM_INTEROP_CUDNN_FUNCTIONS(F)                                                             \
  F(size_t, GetVersion, ())                                                                        \
  F(const char*, GetErrorString, (int status))                                                     \
  F(int, Create, (Handle*))                                                                        \
  F(int, Destroy, (Handle))                                                                        \
  F(int, SetStream, (Handle, cuda::Stream))                                                        \
  F(int, CreateTensorDescriptor, (TensorDesc*))                                                    \
  F(int, SetTensor4dDescriptor,                                                                    \
    (TensorDesc, int format, int data_type, int n, int c, int h, int w))                           \
  F(int, DestroyTensorDescriptor, (TensorDesc))                                                    \
  F(int, CreateFilterDescriptor, (FilterDesc*))                                                    \
  F(int, SetFilter4dDescriptor,                                                                    \
    (FilterDesc, int data_type, int format, int k, int c, int h, int w))                           \
  F(int, DestroyFilterDescriptor, (FilterDesc))                                                    \
  F(int, CreateConvolutionDescriptor, (ConvolutionDesc*))                                          \
  F(int, SetConvolution2dDescriptor,                                                               \
    (ConvolutionDesc, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,            \
     int dilation_w, int mode, int compute_type))                                                  \
  F(int, SetConvolutionGroupCount, (ConvolutionDesc, int groups))                                  \
  F(int, SetConvolutionMathType, (ConvolutionDesc, int math_type))                                 \
  F(int, DestroyConvolutionDescriptor, (ConvolutionDesc))                                          \
  F(int, CreateActivationDescriptor, (ActivationDesc*))                                            \
  F(int, SetActivationDescriptor,                                                                  \
    (ActivationDesc, int mode, int nan_propagation, double coefficient))                           \
  F(int, DestroyActivationDescriptor, (ActivationDesc))                                            \
  F(int, GetConvolutionForwardAlgorithm_v7,                                                        \
    (Handle, TensorDesc x, FilterDesc w, ConvolutionDesc, TensorDesc y, int most, int* number,     \
     ForwardAlgorithmPerf*))                                                                       \
  F(int, ConvolutionForward,                                                                       \
    (Handle, const void* alpha, TensorDesc, const void* x, FilterDesc, const void* w,              \
     ConvolutionDesc, int algorithm, void* workspace, size_t workspace_nbytes, const void* beta,   \
     TensorDesc, void* y))                                                                         \
  F(int, ConvolutionBiasActivationForward,                                                         \
    (Handle, const void* alpha1, TensorDesc, const void* x, FilterDesc, const void* w,             \
     ConvolutionDesc, int algorithm, void* workspace, size_t workspace_nbytes, const void* alpha2, \
     TensorDesc, const void* z, TensorDesc, const void* bias, ActivationDesc, TensorDesc,          \
     void* y))                                                                                     \
  F(int, AddTensor,                                                                                \
    (Handle, const void* alpha, TensorDesc, const void* a, const void* beta, TensorDesc, void* c)) \
  F(int, ActivationForward,                                                                        \
    (Handle, ActivationDesc, const void* alpha, TensorDesc, const void* x, const void* beta,       \
     TensorDesc, void* y))

// The functions of cuDNN. For example, `api.Create` is `cudnnCreate`.
struct Api {
#define TVM_INTEROP_DECLARE(result, name, args) result(*name) args = nullptr;
  TVM_INTEROP_CUDNN_FUNCTIONS(TVM_INTEROP_DECLARE)
#undef TVM_INTEROP_DECLARE

  // Loads the library and never unloads it. Throws std::runtime_error with the reason if the
  // library cannot be used.
  static Api Load(const std::string& path);
};

}  // namespace cudnn
}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_CUDNN_API_H_

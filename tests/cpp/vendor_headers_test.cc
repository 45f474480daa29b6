// Compares our declarations of vendors' interfaces with the vendors' own headers. The arguments and
// results of each function must have types that are passed in the same registers. Each number must
// equal the vendor's enumerator. The build needs none of the headers. This test compares the
// installed headers, and prints their names.
#include "tests/cpp/vendor_headers.h"

#include <cstddef>
#include <cstdio>

#include "runtime/cpu/onednn/api.h"
#include "runtime/cuda/api.h"
#include "runtime/cuda/cublaslt/api.h"
#include "runtime/cuda/cudnn/api.h"

#if __has_include(<cuda_runtime_api.h>) && __has_include(<driver_types.h>)
#define HAS_CUDA 1
#include <cuda_runtime_api.h>
#endif
#if __has_include(<cuda.h>)
#define HAS_CUDA_DRIVER 1
#include <cuda.h>
#endif
#if __has_include(<cudnn.h>)
#define HAS_CUDNN 1
#include <cudnn.h>
#endif
#if __has_include(<cublasLt.h>)
#define HAS_CUBLASLT 1
#include <cublasLt.h>
#endif

namespace {

#ifdef HAS_CUDA
namespace ours = tvm_interop::cuda;
#define COMPARE(result, name, args) EXPECT_SAME(decltype(ours::Api::name), cuda##name)
TVM_INTEROP_CUDA_RUNTIME_FUNCTIONS(COMPARE)
#undef COMPARE
static_assert(sizeof(ours::PointerAttributes) == sizeof(cudaPointerAttributes));
static_assert(offsetof(ours::PointerAttributes, type) == offsetof(cudaPointerAttributes, type));
static_assert(offsetof(ours::PointerAttributes, device) == offsetof(cudaPointerAttributes, device));
EXPECT_NUMBER(ours::kDeviceMemory, cudaMemoryTypeDevice)
EXPECT_NUMBER(ours::kSuccess, cudaSuccess)
EXPECT_NUMBER(ours::kPeerAccessAlreadyEnabled, cudaErrorPeerAccessAlreadyEnabled)
EXPECT_NUMBER(ours::kNonBlocking, cudaStreamNonBlocking)
EXPECT_NUMBER(ours::kWithTiming, cudaEventDefault)
EXPECT_NUMBER(ours::kWithoutTiming, cudaEventDisableTiming)
EXPECT_NUMBER(ours::kThreadLocal, cudaStreamCaptureModeThreadLocal)
EXPECT_NUMBER(ours::kHostToDevice, cudaMemcpyHostToDevice)
EXPECT_NUMBER(ours::kDeviceToHost, cudaMemcpyDeviceToHost)
EXPECT_NUMBER(ours::kDeviceToDevice, cudaMemcpyDeviceToDevice)
EXPECT_NUMBER(ours::kUseNodePriority, cudaGraphInstantiateFlagUseNodePriority)
EXPECT_NUMBER(ours::kComputeCapabilityMajor, cudaDevAttrComputeCapabilityMajor)
EXPECT_NUMBER(ours::kComputeCapabilityMinor, cudaDevAttrComputeCapabilityMinor)
#endif

#ifdef HAS_CUDA_DRIVER
namespace driver = tvm_interop::cuda;
#define COMPARE(result, name, args) EXPECT_SAME(decltype(driver::Api::Driver::name), cu##name)
TVM_INTEROP_CUDA_DRIVER_FUNCTIONS(COMPARE)
#undef COMPARE
static_assert(sizeof(driver::LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(driver::LaunchConfig, grid) == offsetof(CUlaunchConfig, gridDimX));
static_assert(offsetof(driver::LaunchConfig, block) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(driver::LaunchConfig, shared_nbytes) ==
              offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(driver::LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(driver::LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(driver::LaunchConfig, num_attributes) == offsetof(CUlaunchConfig, numAttrs));
EXPECT_NUMBER(driver::kSuccess, CUDA_SUCCESS)
EXPECT_NUMBER(driver::kMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
#endif

#ifdef HAS_CUDNN
namespace dnn = tvm_interop::cudnn;
#define COMPARE(result, name, args) EXPECT_SAME(decltype(dnn::Api::name), cudnn##name)
TVM_INTEROP_CUDNN_FUNCTIONS(COMPARE)
#undef COMPARE
static_assert(sizeof(dnn::ForwardAlgorithmPerf) == sizeof(cudnnConvolutionFwdAlgoPerf_t));
static_assert(offsetof(dnn::ForwardAlgorithmPerf, workspace_nbytes) ==
              offsetof(cudnnConvolutionFwdAlgoPerf_t, memory));
static_assert(offsetof(dnn::ForwardAlgorithmPerf, math_type) ==
              offsetof(cudnnConvolutionFwdAlgoPerf_t, mathType));
EXPECT_NUMBER(dnn::kSuccess, CUDNN_STATUS_SUCCESS)
EXPECT_NUMBER(dnn::kFloat, CUDNN_DATA_FLOAT)
EXPECT_NUMBER(dnn::kHalf, CUDNN_DATA_HALF)
EXPECT_NUMBER(dnn::kNchw, CUDNN_TENSOR_NCHW)
EXPECT_NUMBER(dnn::kCrossCorrelation, CUDNN_CROSS_CORRELATION)
EXPECT_NUMBER(dnn::kDefaultMath, CUDNN_DEFAULT_MATH)
EXPECT_NUMBER(dnn::kTensorOpMath, CUDNN_TENSOR_OP_MATH)
EXPECT_NUMBER(dnn::kFmaMath, CUDNN_FMA_MATH)
EXPECT_NUMBER(dnn::kRelu, CUDNN_ACTIVATION_RELU)
EXPECT_NUMBER(dnn::kIdentity, CUDNN_ACTIVATION_IDENTITY)
EXPECT_NUMBER(dnn::kTensorOpMathAllowConversion, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION)
EXPECT_NUMBER(dnn::kNotPropagateNan, CUDNN_NOT_PROPAGATE_NAN)
EXPECT_NUMBER(dnn::kDeterministic, CUDNN_DETERMINISTIC)
EXPECT_NUMBER(dnn::kImplicitPrecompGemm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
EXPECT_NUMBER(dnn::kNumForwardAlgorithms, CUDNN_CONVOLUTION_FWD_ALGO_COUNT)
#endif

#ifdef HAS_CUBLASLT
namespace blas = tvm_interop::cublaslt;
#define COMPARE(result, name, args) EXPECT_SAME(decltype(blas::Api::name), cublasLt##name)
TVM_INTEROP_CUBLASLT_FUNCTIONS(COMPARE)
#undef COMPARE
static_assert(sizeof(blas::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(blas::HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(blas::HeuristicResult, workspace_nbytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
EXPECT_NUMBER(blas::kSuccess, CUBLAS_STATUS_SUCCESS)
EXPECT_NUMBER(blas::kFloat, CUDA_R_32F)
EXPECT_NUMBER(blas::kHalf, CUDA_R_16F)
EXPECT_NUMBER(blas::kCompute32, CUBLAS_COMPUTE_32F)
EXPECT_NUMBER(blas::kCompute32FastTf32, CUBLAS_COMPUTE_32F_FAST_TF32)
EXPECT_NUMBER(blas::kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE)
EXPECT_NUMBER(blas::kBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER)
EXPECT_NUMBER(blas::kBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
EXPECT_NUMBER(blas::kStridedBatchOffset, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
EXPECT_NUMBER(blas::kMostWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
EXPECT_NUMBER(blas::kReductionSchemes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
EXPECT_NUMBER(blas::kAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
EXPECT_NUMBER(blas::kAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
EXPECT_NUMBER(blas::kNothing, CUBLASLT_EPILOGUE_DEFAULT)
EXPECT_NUMBER(blas::kRelu, CUBLASLT_EPILOGUE_RELU)
EXPECT_NUMBER(blas::kBias, CUBLASLT_EPILOGUE_BIAS)
EXPECT_NUMBER(blas::kReluBias, CUBLASLT_EPILOGUE_RELU_BIAS)
EXPECT_NUMBER(blas::kInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
#endif

#ifdef HAS_ONEDNN
namespace one = tvm_interop::onednn;
#define COMPARE(result, name, args) EXPECT_SAME(decltype(one::Api::name), dnnl_##name)
TVM_INTEROP_ONEDNN_FUNCTIONS(COMPARE)
#undef COMPARE
static_assert(sizeof(one::BoundArgument) == sizeof(dnnl_exec_arg_t));
static_assert(sizeof(one::Version) == sizeof(dnnl_version_t));
EXPECT_NUMBER(one::kMaxDims, DNNL_MAX_NDIMS)
EXPECT_NUMBER(one::kSuccess, dnnl_success)
EXPECT_NUMBER(one::kUnimplemented, dnnl_unimplemented)
EXPECT_NUMBER(one::kSequential, DNNL_RUNTIME_SEQ)
EXPECT_NUMBER(one::kOpenMP, DNNL_RUNTIME_OMP)
EXPECT_NUMBER(one::kCpu, dnnl_cpu)
EXPECT_NUMBER(one::kInOrder, dnnl_stream_in_order)
EXPECT_NUMBER(one::kFloat32, dnnl_f32)
EXPECT_NUMBER(one::kForwardInference, dnnl_forward_inference)
EXPECT_NUMBER(one::kUserScratchpad, dnnl_scratchpad_mode_user)
EXPECT_NUMBER(one::kConvolutionAuto, dnnl_convolution_auto)
EXPECT_NUMBER(one::kRelu, dnnl_eltwise_relu)
EXPECT_NUMBER(one::kClip, dnnl_eltwise_clip)
EXPECT_NUMBER(one::kPoolingMax, dnnl_pooling_max)
EXPECT_NUMBER(one::kPoolingAverageWithPadding, dnnl_pooling_avg_include_padding)
EXPECT_NUMBER(one::kPoolingAverageWithoutPadding, dnnl_pooling_avg_exclude_padding)
EXPECT_NUMBER(one::kBinaryAdd, dnnl_binary_add)
EXPECT_NUMBER(one::kImplementation, dnnl_query_impl_info_str)
EXPECT_NUMBER(one::kSourceDesc, dnnl_query_src_md)
EXPECT_NUMBER(one::kWeightsDesc, dnnl_query_weights_md)
EXPECT_NUMBER(one::kDestinationDesc, dnnl_query_dst_md)
EXPECT_NUMBER(one::kScratchpadDesc, dnnl_query_scratchpad_md)
EXPECT_NUMBER(one::kArgumentDesc, dnnl_query_exec_arg_md)
EXPECT_NUMBER(one::kSource, DNNL_ARG_SRC)
EXPECT_NUMBER(one::kAddend, DNNL_ARG_SRC_1)
EXPECT_NUMBER(one::kDestination, DNNL_ARG_DST)
EXPECT_NUMBER(one::kWeights, DNNL_ARG_WEIGHTS)
EXPECT_NUMBER(one::kBias, DNNL_ARG_BIAS)
EXPECT_NUMBER(one::kScratchpad, DNNL_ARG_SCRATCHPAD)
EXPECT_NUMBER(one::PostOp(2), DNNL_ARG_ATTR_MULTIPLE_POST_OP(2))
#endif

}  // namespace

int main() {
  const char* names[] = {
#ifdef HAS_CUDA
      "CUDA",
#endif
#ifdef HAS_CUDA_DRIVER
      "CUDA's driver",
#endif
#ifdef HAS_CUDNN
      "cuDNN",
#endif
#ifdef HAS_CUBLASLT
      "cuBLASLt",
#endif
#ifdef HAS_ONEDNN
      "oneDNN",
#endif
      nullptr};
  std::printf("compared with the headers of:");
  for (const char** name = names; *name != nullptr; ++name) std::printf(" %s", *name);
  std::printf("\n");
  return 0;
}

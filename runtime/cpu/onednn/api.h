#ifndef RUNTIME_CPU_ONEDNN_API_H_
#define RUNTIME_CPU_ONEDNN_API_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"

namespace tvm_interop {
namespace onednn {

// The part of oneDNN 3's C interface that we use, under our own names. It consists of handles, the
// numbers of enumerators, and functions that are found at run time. If only one kind of operator
// needs a function or a number, the file of the kind declares it (see `kind_function.h`). oneDNN
// keeps all of these in every release 3.x. Neither oneDNN's headers nor its library are needed to
// build this project.

using Engine = struct EngineObject*;
using Stream = struct StreamObject*;
using Memory = struct MemoryObject*;
using MemoryDesc = struct MemoryDescObject*;
using Primitive = struct PrimitiveObject*;
using PrimitiveDesc = struct PrimitiveDescObject*;
using Attributes = struct AttributesObject*;
using PostOps = struct PostOpsObject*;

constexpr int kMaxDims = 12;
using Dims = int64_t[kMaxDims];

constexpr int kVersion = 3;

enum Status : int { kSuccess = 0, kUnimplemented = 3 };
enum CpuRuntime : unsigned { kSequential = 1, kOpenMP = 2 };
enum EngineKind : int { kCpu = 1 };
enum StreamFlags : unsigned { kInOrder = 1 };
enum DataType : int { kBfloat16 = 2, kFloat32 = 3, kInt32 = 4, kInt8 = 5, kUint8 = 6 };
enum PropKind : int { kForwardInference = 96 };
enum ScratchpadMode : int { kUserScratchpad = 1 };

enum Algorithm : int {
  kConvolutionAuto = 0x3,
  kRelu = 0x20,
  kTanh = 0x21,
  kLinear = 0x26,
  kHardSigmoid = 0x28,
  kLogistic = 0x29,
  kGeluTanh = 0x2b,
  kSwish = 0x2c,
  kClip = 0x2e,
  kGeluErf = 0x31,
  kRound = 0x32,
  kHardSwish = 0x34,
  kPoolingMax = 0x1ff,
  kPoolingAverageWithPadding = 0x2ff,
  kPoolingAverageWithoutPadding = 0x3ff,
  kBinaryAdd = 0x1fff0,
};

// The bit for AVX-512 in the set of instructions that oneDNN says it uses.
constexpr int kAvx512 = 0x20;

enum Query : int {
  kImplementation = 8,
  kSourceDesc = 129,
  kWeightsDesc = 131,
  kDestinationDesc = 133,
  kScratchpadDesc = 136,
  kArgumentDesc = 255,
};

enum Argument : int {
  kSource = 1,
  kSecondSource = 2,
  kAddend = 2,  // The addend of a binary post-op is `PostOp(index) | kAddend`.
  kDestination = 17,
  kWeights = 33,
  kBias = 41,
  kScale = 51,
  kShift = 52,
  kScratchpad = 80,
};
// The scales of an argument are `kScalesOf | argument`, and its zero points are `kZeroPointsOf |
// argument`.
constexpr int kScalesOf = 4096;
constexpr int kZeroPointsOf = 8192;
constexpr int PostOp(int index) { return 32768 * (index + 1); }

struct BoundArgument {
  int which;
  Memory memory;
};

struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};

#define TVM_INTEROP_ONEDNN_FUNCTIONS(F)                                                            \
  F(const Version*, version, ())                                                                   \
  F(int, engine_create, (Engine*, int kind, size_t index))                                         \
  F(int, engine_destroy, (Engine))                                                                 \
  F(int, get_effective_cpu_isa, ())                                                                \
  F(int, stream_create, (Stream*, Engine, unsigned flags))                                         \
  F(int, stream_wait, (Stream))                                                                    \
  F(int, stream_destroy, (Stream))                                                                 \
  F(int, memory_desc_create_with_tag,                                                              \
    (MemoryDesc*, int ndims, const int64_t* dims, int data_type, int tag))                         \
  F(int, memory_desc_create_with_strides,                                                          \
    (MemoryDesc*, int ndims, const int64_t* dims, int data_type, const int64_t* strides))          \
  F(int, memory_desc_create_submemory,                                                             \
    (MemoryDesc*, const MemoryDescObject* whole, const int64_t* dims, const int64_t* begins))      \
  F(int, memory_desc_clone, (MemoryDesc*, const MemoryDescObject*))                                \
  F(int, memory_desc_destroy, (MemoryDesc))                                                        \
  F(size_t, memory_desc_get_size, (const MemoryDescObject*))                                       \
  F(int, memory_desc_equal, (const MemoryDescObject*, const MemoryDescObject*))                    \
  F(int, memory_create, (Memory*, const MemoryDescObject*, Engine, void* address))                 \
  F(int, memory_set_data_handle, (Memory, void* address))                                          \
  F(int, memory_destroy, (Memory))                                                                 \
  F(int, primitive_attr_create, (Attributes*))                                                     \
  F(int, primitive_attr_set_scratchpad_mode, (Attributes, int mode))                               \
  F(int, primitive_attr_set_post_ops, (Attributes, PostOps))                                       \
  F(int, primitive_attr_set_scales_mask, (Attributes, int which, int axes))                        \
  F(int, primitive_attr_set_zero_points_mask, (Attributes, int which, int axes))                   \
  F(int, primitive_attr_destroy, (Attributes))                                                     \
  F(int, post_ops_create, (PostOps*))                                                              \
  F(int, post_ops_append_eltwise, (PostOps, int algorithm, float alpha, float beta))               \
  F(int, post_ops_append_binary, (PostOps, int algorithm, const MemoryDescObject* addend))         \
  F(int, post_ops_destroy, (PostOps))                                                              \
  F(int, reorder_primitive_desc_create,                                                            \
    (PrimitiveDesc*, const MemoryDescObject* from, Engine from_engine, const MemoryDescObject* to, \
     Engine to_engine, Attributes))                                                                \
  F(int, convolution_forward_primitive_desc_create,                                                \
    (PrimitiveDesc*, Engine, int prop_kind, int algorithm, const MemoryDescObject* source,         \
     const MemoryDescObject* weights, const MemoryDescObject* bias,                                \
     const MemoryDescObject* destination, const int64_t* strides, const int64_t* extra_dilation,   \
     const int64_t* padding_begin, const int64_t* padding_end, Attributes))                        \
  F(int, matmul_primitive_desc_create,                                                             \
    (PrimitiveDesc*, Engine, const MemoryDescObject* source, const MemoryDescObject* weights,      \
     const MemoryDescObject* bias, const MemoryDescObject* destination, Attributes))               \
  F(int, pooling_forward_primitive_desc_create,                                                    \
    (PrimitiveDesc*, Engine, int prop_kind, int algorithm, const MemoryDescObject* source,         \
     const MemoryDescObject* destination, const int64_t* strides, const int64_t* window,           \
     const int64_t* extra_dilation, const int64_t* padding_begin, const int64_t* padding_end,      \
     Attributes))                                                                                  \
  F(int, primitive_desc_query, (PrimitiveDesc, int query, int index, void* result))                \
  F(const MemoryDescObject*, primitive_desc_query_md, (PrimitiveDesc, int query, int index))       \
  F(int, primitive_desc_destroy, (PrimitiveDesc))                                                  \
  F(int, primitive_create, (Primitive*, PrimitiveDesc))                                            \
  F(int, primitive_execute, (Primitive, Stream, int number, const BoundArgument*))                 \
  F(int, primitive_destroy, (Primitive))

// The names, in oneDNN, of the functions that only the kernels of one kind of operator call (see
// `kind_function.h`).
std::vector<const char*>& KindFunctionNames();

// The functions of oneDNN. For example, `api.memory_create` is `dnnl_memory_create`.
struct Api {
#define TVM_INTEROP_DECLARE(result, name, args) result(*name) args = nullptr;
  TVM_INTEROP_ONEDNN_FUNCTIONS(TVM_INTEROP_DECLARE)
#undef TVM_INTEROP_DECLARE

  // The functions whose names `KindFunctionNames()` returns, in the same order.
  std::vector<void (*)()> of_kinds;

  // OpenMP's functions that get and set the calling thread's team size (its number of threads).
  // Both are null if the library was built without threads.
  void (*set_team_size)(int threads) = nullptr;
  int (*team_size)() = nullptr;

  // The layout of blocked tensors for which oneDNN has fast kernels on this CPU.
  Layout Blocked() const;

  // Loads the library and never unloads it, because unloading a library that started threads is not
  // safe. Throws std::runtime_error with the reason if the library cannot be used.
  static Api Load(const std::string& path);
};

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_API_H_

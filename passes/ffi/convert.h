#ifndef PASSES_FFI_CONVERT_H_
#define PASSES_FFI_CONVERT_H_

// Conversions between the C++ types of the passes and the types of tvm-ffi. A long list of numbers
// is passed as the bytes of a numpy array of int64 or double. A short list is passed as an array.
// Only the files with bindings include this header.
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "passes/graph/error.h"
#include "passes/graph/op_graph.h"
#include "passes/plan/memory_plan.h"
#include "passes/schedulers/schedule.h"
#include "passes/schedulers/stage_batch.h"

namespace tvm_interop {

namespace ffi = tvm::ffi;
namespace refl = tvm::ffi::reflection;

using IntList = ffi::Array<int64_t>;
using IntLists = ffi::Array<IntList>;

class OpGraphObj : public ffi::Object {
 public:
  explicit OpGraphObj(OpGraph graph) : graph(std::move(graph)) {}
  const OpGraph graph;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.OpGraph", OpGraphObj, ffi::Object);
};

class OpGraphRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(OpGraphRef, ffi::ObjectRef, OpGraphObj);
};

// Converts a number to int. A number beyond the limits of int becomes the nearest limit. No graph
// has an operator with such an id, so the id is refused later.
inline int ToInt(int64_t value) {
  return static_cast<int>(
      std::clamp<int64_t>(value, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
}

inline std::vector<int> ToVector(const IntList& list) {
  std::vector<int> values;
  values.reserve(list.size());
  for (int64_t value : list) values.push_back(ToInt(value));
  return values;
}

inline std::vector<std::vector<int>> ToVectors(const IntLists& lists) {
  std::vector<std::vector<int>> values;
  values.reserve(lists.size());
  for (const IntList& list : lists) values.push_back(ToVector(list));
  return values;
}

inline IntList ToArray(const std::vector<int>& values) {
  IntList list;
  list.reserve(static_cast<int64_t>(values.size()));
  for (int value : values) list.push_back(value);
  return list;
}

inline IntLists ToArrays(const std::vector<std::vector<int>>& lists) {
  IntLists arrays;
  arrays.reserve(static_cast<int64_t>(lists.size()));
  for (const auto& list : lists) arrays.push_back(ToArray(list));
  return arrays;
}

template <typename T>
std::vector<T> Unpack(const ffi::Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <typename T>
ffi::Bytes Pack(const std::vector<T>& values) {
  return ffi::Bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

inline std::vector<Edge> UnpackEdges(const ffi::Bytes& bytes) {
  const std::vector<int64_t> ids = Unpack<int64_t>(bytes);
  std::vector<Edge> edges;
  for (size_t i = 0; i + 1 < ids.size(); i += 2)
    edges.emplace_back(ToInt(ids[i]), ToInt(ids[i + 1]));
  return edges;
}

// Each stage is passed as lists of numbers: first the list of the streams of its groups, then a
// list of operators for each group. `devices` holds the device of each stage, or -1 if there is
// only one device.
inline std::vector<Stage> ToStages(const ffi::Array<IntLists>& lists, const IntList& devices) {
  std::vector<Stage> stages;
  for (const IntLists& list : lists) {
    Stage stage;
    stage.device = ToInt(devices[static_cast<int64_t>(stages.size())]);
    stage.streams = ToVector(list[0]);
    for (size_t g = 1; g < list.size(); ++g) stage.groups.push_back(ToVector(list[g]));
    stages.push_back(std::move(stage));
  }
  return stages;
}

inline ffi::Array<IntLists> FromStages(const std::vector<Stage>& stages) {
  ffi::Array<IntLists> lists;
  for (const Stage& stage : stages) {
    IntLists list = {ToArray(stage.streams)};
    for (const auto& group : stage.groups) list.push_back(ToArray(group));
    lists.push_back(list);
  }
  return lists;
}

inline ffi::Array<ffi::Bytes> FromBatch(const StageBatch& batch) {
  return {Pack(batch.ops), Pack(batch.group_ends), Pack(batch.stage_ends)};
}

// Throws LatencyError unless the batch of stages is well formed and each operator in it has a
// latency in `op_us`.
inline StageBatch ToBatch(const ffi::Array<ffi::Bytes>& parts, const std::vector<double>& op_us) {
  StageBatch batch = {Unpack<int64_t>(parts[0]), Unpack<int64_t>(parts[1]),
                      Unpack<int64_t>(parts[2])};
  CheckBatch(batch, op_us.size());
  return batch;
}

inline int CheckedOp(const OpGraphRef& graph, int64_t op) {
  const int num_ops = graph->graph.num_ops();
  if (op >= 0 && op < num_ops) return static_cast<int>(op);
  throw GraphError("there is no operator " + std::to_string(op) + ": the graph has " +
                   std::to_string(num_ops) + ", numbered from 0");
}

// Unpacks one number for each operator of the graph. Throws GraphError if there are more or fewer
// numbers.
template <typename T>
std::vector<T> UnpackForOps(const OpGraphRef& graph, const ffi::Bytes& bytes) {
  std::vector<T> values = Unpack<T>(bytes);
  const int num_ops = graph->graph.num_ops();
  if (values.size() == static_cast<size_t>(num_ops)) return values;
  throw GraphError("there are " + std::to_string(values.size()) + " numbers for " +
                   std::to_string(num_ops) + " operators; give one for each");
}

inline std::vector<Buffer> ToBuffers(const IntList& nbytes, const IntLists& producers,
                                     const IntLists& users) {
  std::vector<Buffer> buffers;
  for (size_t b = 0; b < nbytes.size(); ++b) {
    buffers.push_back({nbytes[b], ToVector(producers[b]), ToVector(users[b])});
  }
  return buffers;
}

// Wraps a function so that it throws a PassError as an error of tvm-ffi. Python then raises the
// class that is registered for the kind of the error.
template <typename Result, typename... Args>
auto Guarded(Result (*function)(Args...)) {
  return [function](Args... args) -> Result {
    try {
      return function(std::move(args)...);
    } catch (const PassError& error) {
      throw ffi::Error(error.kind(), error.what(), "");
    }
  };
}

}  // namespace tvm_interop

#endif  // PASSES_FFI_CONVERT_H_

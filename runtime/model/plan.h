#ifndef RUNTIME_MODEL_PLAN_H_
#define RUNTIME_MODEL_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"

namespace tvm_interop {

// The largest numbers in a plan, so that nothing computed from them overflows.
// `tvm_interop/plan/limits.py` has the same limits.
constexpr int64_t kMaxOperators = int64_t{1} << 20;
constexpr int64_t kMaxStreams = int64_t{1} << 12;
constexpr int64_t kMaxThreads = int64_t{1} << 12;
constexpr int64_t kMaxDevices = int64_t{1} << 10;
constexpr size_t kMaxRank = 32;
constexpr size_t kMaxRepeated = 64;
constexpr int64_t kMaxDimension = int64_t{1} << 40;
constexpr int64_t kMaxParameter = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxBytes = int64_t{1} << 46;

// The address of every tensor, except for the caller's inputs, is a multiple of this many bytes.
// Vector instructions then touch as few cache lines as possible. Artifacts of older versions need
// it for inputs too, because TVM's code generator assumed it.
constexpr int64_t kTensorAlignment = 64;
// On a GPU, a tensor that is a part of another tensor has an address that is a multiple of this
// many bytes.
constexpr int64_t kGpuPartAlignment = 32;

// A type of tensor elements. `code` and `bits` are those of DLPack.
struct ElementType {
  std::string name;  // as NumPy spells it
  uint8_t code = 0;
  uint8_t bits = 0;
  int64_t nbytes() const { return bits / 8; }
};

// Returns the type called `name`, or null if there is none.
const ElementType* FindElementType(const std::string& name);

enum class Storage { kInput, kWeight, kOutput, kArena, kAlias };
const char* NameOf(Storage storage);

// Returns a * b, or `kMaxBytes` + 1 if the product is larger than that. `a` and `b` may not be
// negative.
int64_t BoundedProduct(int64_t a, int64_t b);
// Returns the number of elements of a tensor, or `kMaxBytes` + 1 if there are more.
int64_t BoundedElements(const std::vector<int64_t>& shape);

// A tensor and where its bytes are. See `PlannedValue` in `tvm_interop/plan/plan.py`.
struct PlannedValue {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;
  const ElementType* type = nullptr;  // null if `dtype` names no type
  Storage storage = Storage::kArena;
  std::optional<int64_t> offset;
  std::optional<int64_t> alias_of;
  Layout layout = Layout::kPlain;
  std::optional<std::string> device;
  std::optional<int64_t> copy_of;

  // The shape in memory. It is larger than `shape` if the layout pads the last block of channels.
  std::vector<int64_t> StoredShape() const;
  // The number of bytes that the tensor takes, or kMaxBytes + 1 if the number is larger than that.
  int64_t Nbytes() const;
};

struct Stream {
  std::string device;
  int64_t threads = 1;
  bool urgent = false;  // whether a GPU should prefer this stream's work
};

// One call of a kernel. See `PlannedOperator` in `tvm_interop/plan/plan.py`.
struct PlannedOperator {
  std::string name;
  std::string kernel;
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  int64_t stream = 0;
  std::vector<int64_t> waits;
  std::optional<std::string> library;
  std::shared_ptr<OpDescription> description;  // null if TVM's kernel runs
  // The types in which the tensors of the description are stored, by NumPy's names.
  std::vector<std::string> described_types;
  bool is_share = false;
  int64_t share = 0, shares = 1;

  // The operator's inputs and then its outputs.
  std::vector<int64_t> Arguments() const;
};

struct Plan {
  std::vector<Stream> streams;
  std::vector<PlannedValue> values;
  std::vector<PlannedOperator> operators;
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  int64_t arena_bytes = 0;
  bool parallel_kernels = false;
  bool has_arenas = false;  // whether each of several devices has an arena of its own

  // Returns the value that `value` is a part of, or `value` itself if it has storage of its own.
  int64_t RootOf(int64_t value) const { return values[value].alias_of.value_or(value); }
  bool IsConstant(int64_t value) const { return values[RootOf(value)].storage == Storage::kWeight; }
  bool UsesLibrary() const;
  // The number of the GPU that the plan runs on, or nothing if the plan runs on a CPU. The plan
  // must have been checked.
  std::optional<int> Gpu() const;
};

// Reads the JSON text of a plan. `name` is the name of the text in error messages. Throws
// ArtifactError if the text is not a plan of this version. The numbers in the plan are not checked
// here: see `CheckPlan`.
Plan ReadPlan(const std::string& name, const std::string& text);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_PLAN_H_

#ifndef RUNTIME_CORE_OP_DESCRIPTION_H_
#define RUNTIME_CORE_OP_DESCRIPTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/core/ending.h"
#include "runtime/core/fields.h"

namespace tvm_interop {

// How a tensor's elements lie in memory. A blocked tensor keeps a block of 8 or 16 channels of a
// pixel side by side, and fills the last block up with zeros.
enum class Layout { kPlain, kBlocked16, kBlocked8 };

// The number of channels in a block; 1 for plain tensors.
constexpr int64_t BlockOf(Layout layout) {
  return layout == Layout::kBlocked16 ? 16 : layout == Layout::kBlocked8 ? 8 : 1;
}

enum class DataType { kFloat32, kFloat16, kBfloat16, kInt8, kUint8, kInt32 };

// Describes what an operator computes, in terms that any kernel library understands. The tensors
// have the type `dtype`, unless `stored` names another type. Products of float16 and bfloat16 are
// added up in float32.
//
// Each kind of operator derives from this class, in a file of `operators/`, and registers itself
// there. If kinds differ in a property, this class has a virtual function for the property. No code
// compares the names of kinds.
class OpDescription {
 public:
  virtual ~OpDescription() = default;

  // The number of tensors that the operator takes, its output included.
  virtual size_t NumArguments() const = 0;
  // Returns the fault of the fields or shapes of this kind, or an empty string if there is none.
  // For example, a shape may not follow from the other shapes. The caller has checked that there
  // are as many shapes as arguments, and that no tensor is empty.
  virtual std::string WhyWrong() const = 0;
  // Visits all fields of the operator except its tensors.
  virtual void VisitFields(Fields* /*fields*/) {}
  // The last steps of the operator: a bias, a sum and an activation.
  virtual const Ending& ends() const;
  // Whether the operator multiplies or moves 8-bit integers.
  virtual bool is_quantised() const { return false; }
  // Whether the argument `argument` may be a part of a larger tensor, cut along `axis`.
  virtual bool MayCut(int64_t /*argument*/, int64_t /*axis*/) const { return false; }
  // Whether several operators may compute the shares of the result (see `KernelShare`).
  virtual bool HasShares() const { return false; }

  bool is_cut(size_t argument) const {
    return !cut.empty() && cut[0] == static_cast<int64_t>(argument);
  }
  // Whether all tensors are float32, and numbers are not rounded before they are multiplied.
  bool is_float32() const {
    bool is = dtype == DataType::kFloat32;
    for (DataType type : stored) is = is && type == DataType::kFloat32;
    return is;
  }
  DataType stored_type(size_t argument) const { return stored.empty() ? dtype : stored[argument]; }

  // The name of the operator's kind.
  std::string op;
  // The shape and the layout of each argument in order, the output last. A shape does not depend on
  // the layout: a blocked tensor has the same shape as a plain tensor.
  std::vector<std::vector<int64_t>> shapes;
  std::vector<Layout> layouts;
  // The type to which numbers may be rounded before they are multiplied. It is int8 for quantised
  // operators.
  DataType dtype = DataType::kFloat32;
  // The type in which each argument is stored in memory. Empty if all arguments are stored as
  // `dtype`.
  std::vector<DataType> stored;
  // Describes an argument that is cut out of a larger tensor along one axis. There are four
  // numbers: the index of the argument, the axis, the first index of the part on this axis, and the
  // size of the larger tensor along this axis. Empty if no argument is cut. `shapes` has the shape
  // of the part. The cut argument has the plain layout.
  std::vector<int64_t> cut;
};

class UnknownKind : public std::runtime_error {
 public:
  explicit UnknownKind(const std::string& kind)
      : std::runtime_error("`" + kind + "` is not a kind of operator") {}
};

// Makes an operator of this kind; the caller fills in its fields. Throws UnknownKind.
std::unique_ptr<OpDescription> NewOpDescription(const std::string& kind);

using MakesOpDescription = std::unique_ptr<OpDescription> (*)();

// The functions that make operators, by the name of the kind.
std::map<std::string, MakesOpDescription>& Kinds();

// Registers a kind. The file of each kind has one such object, of static lifetime.
template <typename Kind>
class RegisteredKind {
 public:
  explicit RegisteredKind(const char* name) {
    Kinds()[name] = [] { return std::unique_ptr<OpDescription>(std::make_unique<Kind>()); };
  }
};

// Returns a sentence about a fault of a description, or an empty string if there is none. This
// function checks only what every kernel library requires.
std::string WhyMalformed(const OpDescription& op);

// Writes a description as text. Equal descriptions give equal texts, and different descriptions
// give different texts.
std::string Describe(const OpDescription& op);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OP_DESCRIPTION_H_

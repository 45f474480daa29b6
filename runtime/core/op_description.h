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

// Where a tensor's elements lie. A blocked tensor keeps 16 channels of a pixel side by side; the
// last block is filled up with zeros.
enum class Layout { kPlain, kBlocked16 };

enum class DataType { kFloat32, kFloat16, kBfloat16, kInt8, kUint8, kInt32 };

// What an operator computes, in terms that any library understands. Its tensors are of `dtype`, but
// for those that `stored` says are kept otherwise. Products of float16 and bfloat16 add up in
// float32.
//
// Each kind of operator derives from this, in a file of `operators/`, and registers itself there.
// What differs between kinds is asked here: nothing compares their names.
class OpDescription {
 public:
  virtual ~OpDescription() = default;

  // How many tensors it takes, its output included.
  virtual size_t NumArguments() const = 0;
  // What of its own is wrong: a shape that does not follow from the others, say. Empty where
  // nothing is. There are as many shapes as arguments, and none is of an empty tensor.
  virtual std::string WhyWrong() const = 0;
  // Goes through what it is described by beside its tensors.
  virtual void VisitFields(Fields* /*fields*/) {}
  // What it does at the end.
  virtual const Ending& ends() const;
  // Whether it multiplies or moves integers of 8 bits.
  virtual bool is_quantised() const { return false; }
  // Whether this argument may be cut out of a larger tensor along this axis.
  virtual bool MayCut(int64_t /*argument*/, int64_t /*axis*/) const { return false; }

  bool is_cut(size_t argument) const {
    return !cut.empty() && cut[0] == static_cast<int64_t>(argument);
  }
  DataType stored_type(size_t argument) const { return stored.empty() ? dtype : stored[argument]; }

  // The kind's name.
  std::string op;
  // Of each argument in order, the output last. Shapes are those of plain tensors, always.
  std::vector<std::vector<int64_t>> shapes;
  std::vector<Layout> layouts;
  // What the factors of products are rounded to. Of what is quantised, int8.
  DataType dtype = DataType::kFloat32;
  // Of each argument, what its numbers are kept as in memory; none where all are kept as `dtype`.
  std::vector<DataType> stored;
  // Where one argument is cut out of the tensor that is given for it: the argument, the axis, where
  // on that axis it begins, and the tensor's size along it. Empty where none is. `shapes` has what
  // is cut out. All is plain.
  std::vector<int64_t> cut;
};

// A kind that nothing is known of.
class UnknownKind : public std::runtime_error {
 public:
  explicit UnknownKind(const std::string& kind)
      : std::runtime_error("`" + kind + "` is no kind of operator") {}
};

// An operator of this kind, of which nothing is said yet. Throws UnknownKind.
std::unique_ptr<OpDescription> NewOpDescription(const std::string& kind);

using MakesOpDescription = std::unique_ptr<OpDescription> (*)();

// What makes an operator, by kind.
std::map<std::string, MakesOpDescription>& Kinds();

// Registers a kind, as an object of static lifetime in the kind's file.
template <typename Kind>
class RegisteredKind {
 public:
  explicit RegisteredKind(const char* name) {
    Kinds()[name] = [] { return std::unique_ptr<OpDescription>(std::make_unique<Kind>()); };
  }
};

// What is wrong with a description, whatever the library. Empty where nothing is.
std::string WhyMalformed(const OpDescription& op);

// A description as text: equal ones give equal text, others do not.
std::string Describe(const OpDescription& op);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OP_DESCRIPTION_H_

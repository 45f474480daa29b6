#include "runtime/model/npz.h"

#include <cstring>
#include <utility>
#include <vector>

#include "runtime/core/aligned_memory.h"
#include "runtime/model/error.h"

namespace tvm_interop {
namespace {

[[noreturn]] void Refuse(const std::string& why) {
  throw ArtifactError("`weights.npz` cannot be read: " + why);
}

// Reads numbers of a file whose contents are not trusted. Numbers are little-endian.
class Bytes {
 public:
  explicit Bytes(const std::string& data) : data_(data) {}

  uint64_t NumberAt(uint64_t offset, int nbytes) const {
    const char* at = At(offset, static_cast<uint64_t>(nbytes));
    uint64_t number = 0;
    for (int i = nbytes; i-- > 0;) number = number << 8 | static_cast<unsigned char>(at[i]);
    return number;
  }
  std::string TextAt(uint64_t offset, uint64_t nbytes) const {
    return std::string(At(offset, nbytes), nbytes);
  }
  const char* At(uint64_t offset, uint64_t nbytes) const {
    if (offset > data_.size() || nbytes > data_.size() - offset) Refuse("it is truncated");
    return data_.data() + offset;
  }
  uint64_t size() const { return data_.size(); }

 private:
  const std::string& data_;
};

// A member's bytes: where they begin, and how many there are.
using Range = std::pair<uint64_t, uint64_t>;

// Finds the members in the directory at the end of a zip file.
std::map<std::string, Range> MembersOf(const Bytes& zip) {
  constexpr uint64_t kEnd = 22, kMostComment = 0xffff, kEntry = 46, kLocal = 30;
  uint64_t end = zip.size() < kEnd ? 0 : zip.size() - kEnd;
  const uint64_t last = end > kMostComment ? end - kMostComment : 0;
  while (zip.NumberAt(end, 4) != 0x06054b50) {
    if (end == last) Refuse("it is not a zip file");
    --end;
  }
  std::map<std::string, Range> members;
  uint64_t at = zip.NumberAt(end + 16, 4);
  const uint64_t count = zip.NumberAt(end + 10, 2);
  for (uint64_t i = 0; i < count; ++i) {
    if (zip.NumberAt(at, 4) != 0x02014b50) Refuse("its directory is damaged");
    const uint64_t method = zip.NumberAt(at + 10, 2), nbytes = zip.NumberAt(at + 24, 4);
    const uint64_t name_size = zip.NumberAt(at + 28, 2);
    const uint64_t local = zip.NumberAt(at + 42, 4);
    if (method != 0) Refuse("a member is compressed");
    if (nbytes == 0xffffffff || local == 0xffffffff) Refuse("it has 4 GiB or more");
    const std::string name = zip.TextAt(at + kEntry, name_size);
    const uint64_t begin =
        local + kLocal + zip.NumberAt(local + 26, 2) + zip.NumberAt(local + 28, 2);
    zip.At(begin, nbytes);  // Throws if the file does not have these bytes.
    if (!members.emplace(name, Range{begin, nbytes}).second) Refuse("a member is there twice");
    at += kEntry + name_size + zip.NumberAt(at + 30, 2) + zip.NumberAt(at + 32, 2);
  }
  return members;
}

// The text that NumPy writes for the type of a weight.
std::string DescrOf(const ElementType& type) {
  if (type.name == "bool") return "|b1";
  const char kind = type.code == 0 ? 'i' : type.code == 1 ? 'u' : 'f';
  return std::string(type.bits == 8 ? "|" : "<") + kind + std::to_string(type.nbytes());
}

std::string TupleOf(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

// Returns the offset at which the numbers of a `.npy` file begin. Throws ArtifactError if the
// header has another type or shape than `value`.
uint64_t DataOf(const Bytes& zip, const Range& npy, const PlannedValue& value) {
  const uint64_t begin = npy.first;
  if (npy.second < 10 || zip.TextAt(begin, 6) != "\x93NUMPY") Refuse("a member is not an array");
  const bool is_short = zip.NumberAt(begin + 6, 1) == 1;
  const uint64_t head = is_short ? 10 : 12;
  const uint64_t size = zip.NumberAt(begin + 8, is_short ? 2 : 4);
  const std::string wanted = "{'descr': '" + DescrOf(*value.type) +
                             "', 'fortran_order': False, 'shape': " + TupleOf(value.shape) + ", }";
  if (size < wanted.size() || zip.TextAt(begin + head, wanted.size()) != wanted) {
    throw ArtifactError("weight `" + value.name + "` is stored with another type or shape than " +
                        value.dtype + TupleOf(value.shape));
  }
  if (npy.second != head + size + static_cast<uint64_t>(value.Nbytes())) {
    Refuse("weight `" + value.name + "` has another size than its shape");
  }
  return begin + head + size;
}

class Block : public Memory {
 public:
  explicit Block(size_t nbytes) : own_(AlignedMemory(nbytes)) {
    data_ = own_.get();
    nbytes_ = nbytes;
  }
  char* data() { return own_.get(); }

 private:
  std::shared_ptr<char> own_;
};

}  // namespace

std::shared_ptr<const Memory> ReadNpz(const std::string& data,
                                      const std::map<int64_t, PlannedValue>& wanted,
                                      std::map<int64_t, int64_t>* offsets) {
  const Bytes zip(data);
  const std::map<std::string, Range> members = MembersOf(zip);
  std::map<int64_t, uint64_t> places;
  int64_t end = 0;
  for (const auto& [v, value] : wanted) {
    const auto member = members.find(std::to_string(v) + ".npy");
    if (member == members.end()) {
      throw ArtifactError("there is no data for weight `" + value.name + "`");
    }
    places[v] = DataOf(zip, member->second, value);
    (*offsets)[v] = end;
    end += (value.Nbytes() + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  // Check the sum of the sizes: members of a malicious file may overlap, and together claim more
  // bytes than the file has.
  if (static_cast<uint64_t>(end) > zip.size() + 64 * wanted.size()) {
    Refuse("it is smaller than the plan's weights");
  }
  const auto block = std::make_shared<Block>(static_cast<size_t>(end));
  for (const auto& [v, value] : wanted) {
    const auto nbytes = static_cast<size_t>(value.Nbytes());
    std::memcpy(block->data() + offsets->at(v), zip.At(places[v], nbytes), nbytes);
  }
  return block;
}

}  // namespace tvm_interop

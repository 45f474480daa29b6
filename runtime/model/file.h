#ifndef RUNTIME_MODEL_FILE_H_
#define RUNTIME_MODEL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tvm_interop {

// A block of memory that a model's weights lie in.
class Memory {
 public:
  virtual ~Memory() = default;
  const char* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  // Tells the system that the bytes [begin, begin + nbytes) are not needed for now. The system may
  // drop them from memory. It reads them from the file again when they are used.
  virtual void Release(const void* /*begin*/, size_t /*nbytes*/) const {}
  // Whether the bytes are still the bytes that were read first. Somebody may have overwritten the
  // file.
  virtual bool IsUnchanged() const { return true; }

 protected:
  const char* data_ = nullptr;
  size_t nbytes_ = 0;
};

// The bytes of an artifact: a file, or memory that the caller gave.
class Source {
 public:
  virtual ~Source() = default;
  uint64_t nbytes() const { return nbytes_; }
  // Copies bytes to `to`. Throws ArtifactError if the source has no such bytes any more.
  virtual void Read(uint64_t offset, void* to, size_t nbytes) const = 0;
  // Returns bytes of the source as memory that begins at a multiple of 64. `offset` must be a
  // multiple of 64.
  virtual std::shared_ptr<const Memory> Map(uint64_t offset, size_t nbytes) const = 0;

 protected:
  uint64_t nbytes_ = 0;
};

// Opens a file. Weights are mapped from it, not read: the system reads pages when they are used,
// and may drop them when memory is short. Throws ArtifactError if the file cannot be read.
std::unique_ptr<Source> OpenFile(const std::string& path);

// Reads from `nbytes` bytes at `data`, which must stay there until the artifact has been read.
// Weights are copied.
std::unique_ptr<Source> OpenMemory(const void* data, size_t nbytes);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_FILE_H_

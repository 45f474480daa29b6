#include "runtime/model/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "runtime/core/aligned_memory.h"
#include "runtime/model/error.h"

namespace tvm_interop {
namespace {

constexpr const char* kFreeMemory = "free memory, or raise the limit on memory (`ulimit -v`)";
constexpr const char* kReadable = "give the path of an artifact that you may read";

std::string SystemError(int error) { return std::generic_category().message(error); }

// A part of a file that is mapped into memory, read-only. Processes that map the same file share
// its pages.
class Mapped : public Memory {
 public:
  Mapped(int file, uint64_t offset, size_t nbytes)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        file_(fcntl(file, F_DUPFD_CLOEXEC, 0)),
        mapped_(StatusOf(file_)) {
    const size_t before = offset % page_;
    length_ = nbytes + before;
    begin_ =
        mmap(nullptr, length_, PROT_READ, MAP_PRIVATE, file, static_cast<off_t>(offset - before));
    if (begin_ == MAP_FAILED) {
      const std::string why = SystemError(errno);
      close(file_);
      throw ArtifactError("it cannot be mapped into memory: " + why, kFreeMemory);
    }
    data_ = static_cast<const char*>(begin_) + before;
    nbytes_ = nbytes;
  }
  ~Mapped() override {
    munmap(begin_, length_);
    close(file_);
  }

  void Release(const void* begin, size_t nbytes) const override {
    // Release only whole pages, because other weights may lie in the first and in the last page.
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const uintptr_t first = (address + page_ - 1) / page_ * page_;
    const uintptr_t end = (address + nbytes) / page_ * page_;
    if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }

  bool IsUnchanged() const override { return file_ >= 0 && StatusOf(file_) == mapped_; }

 private:
  // The properties that change when somebody writes to a file: its size, and the time of the last
  // change.
  using Status = std::array<int64_t, 3>;

  static Status StatusOf(int file) {
    struct stat status;
    if (fstat(file, &status) != 0) return {-1};
    return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  }

  const size_t page_;
  const int file_;  // Stays open, to read its status later; -1 if too many files are open.
  const Status mapped_;
  void* begin_;
  size_t length_;
};

class Copied : public Memory {
 public:
  Copied(const void* from, size_t nbytes) : own_(AlignedMemory(nbytes)) {
    if (nbytes > 0) std::memcpy(own_.get(), from, nbytes);
    data_ = own_.get();
    nbytes_ = nbytes;
  }

 private:
  std::shared_ptr<char> own_;
};

class File : public Source {
 public:
  // Without O_NONBLOCK, `open` would wait for a writer if the path is a pipe.
  explicit File(const std::string& path)
      : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_ < 0) throw ArtifactError("it cannot be read: " + SystemError(errno), kReadable);
    struct stat status;
    if (fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
      close(file_);
      throw ArtifactError("it is not a file", "make an artifact with `tvm-interop compile`");
    }
    nbytes_ = static_cast<uint64_t>(status.st_size);
  }
  ~File() override { close(file_); }

  void Read(uint64_t offset, void* to, size_t nbytes) const override {
    for (size_t done = 0; done < nbytes;) {
      const ssize_t got = pread(file_, static_cast<char*>(to) + done, nbytes - done,
                                static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw ArtifactError("it cannot be read: " + SystemError(errno), kReadable);
      if (got == 0)
        throw ArtifactError("it is truncated or not an artifact of tvm_interop", kCopyAgain);
      done += static_cast<size_t>(got);
    }
  }

  std::shared_ptr<const Memory> Map(uint64_t offset, size_t nbytes) const override {
    if (nbytes == 0) return std::make_shared<Copied>("", 0);
    return std::make_shared<Mapped>(file_, offset, nbytes);
  }

 private:
  const int file_;
};

class GivenMemory : public Source {
 public:
  GivenMemory(const void* data, size_t nbytes) : data_(static_cast<const char*>(data)) {
    nbytes_ = nbytes;
  }
  void Read(uint64_t offset, void* to, size_t nbytes) const override {
    if (offset > nbytes_ || nbytes > nbytes_ - offset) {
      throw ArtifactError("it is truncated or not an artifact of tvm_interop", kCopyAgain);
    }
    if (nbytes > 0) std::memcpy(to, data_ + offset, nbytes);
  }
  std::shared_ptr<const Memory> Map(uint64_t offset, size_t nbytes) const override {
    return std::make_shared<Copied>(data_ + offset, nbytes);
  }

 private:
  const char* data_;
};

}  // namespace

std::unique_ptr<Source> OpenFile(const std::string& path) { return std::make_unique<File>(path); }

std::unique_ptr<Source> OpenMemory(const void* data, size_t nbytes) {
  return std::make_unique<GivenMemory>(data, nbytes);
}

}  // namespace tvm_interop

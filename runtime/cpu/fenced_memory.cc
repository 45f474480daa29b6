#include "runtime/cpu/fenced_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/core/large_pages.h"

namespace tvm_interop {
namespace {

constexpr uint8_t kSlack = 0xa5;
constexpr size_t kLarge = 2 * kLargePage;
constexpr const char* kNoMemory =
    "there is not enough memory for the check of a kernel; free memory, or raise its limit "
    "(`ulimit -v`)";

size_t PageSize() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

FencedMemory::FencedMemory(size_t nbytes, size_t alignment, Place place, uint8_t fill)
    : FencedMemory(nbytes, alignment, place) {
  std::memset(data_, fill, nbytes);
}

FencedMemory::FencedMemory(const void* contents, size_t nbytes, size_t alignment, Place place)
    : FencedMemory(nbytes, alignment, place) {
  std::memcpy(data_, contents, nbytes);
}

FencedMemory::FencedMemory(size_t nbytes, size_t alignment, Place place) : nbytes_(nbytes) {
  const size_t page = PageSize();
  const size_t inside = std::max<size_t>((nbytes + page - 1) / page, 1) * page;
  mapped_nbytes_ = inside + 2 * page;
  void* const mapped =
      mmap(nullptr, mapped_nbytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error(kNoMemory);
  mapped_ = static_cast<uint8_t*>(mapped);
  uint8_t* const begin = mapped_ + page;
  if (mprotect(begin, inside, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapped_, mapped_nbytes_);
    throw std::runtime_error(kNoMemory);
  }
  // Prefer large pages, because the system then has far fewer pages to provide.
  if (inside >= kLarge) PreferLargePages(begin, inside);
  const size_t last = (inside - nbytes) / alignment * alignment;
  data_ = place == Place::kAfterFence ? begin : begin + last;
  std::memset(begin, kSlack, data_ - begin);
  std::memset(data_ + nbytes, kSlack, begin + inside - (data_ + nbytes));
}

FencedMemory::~FencedMemory() { munmap(mapped_, mapped_nbytes_); }

void FencedMemory::ForbidWrites() {
  const size_t page = PageSize();
  if (mprotect(mapped_ + page, mapped_nbytes_ - 2 * page, PROT_READ) != 0) {
    throw std::runtime_error("the system does not protect the memory of a check");
  }
}

bool FencedMemory::SlackIsIntact() const {
  const size_t page = PageSize();
  const auto is_slack = [](uint8_t byte) { return byte == kSlack; };
  return std::all_of(mapped_ + page, data_, is_slack) &&
         std::all_of(data_ + nbytes_, mapped_ + mapped_nbytes_ - page, is_slack);
}

bool FencedMemory::Encloses(const void* address) const {
  const auto* const byte = static_cast<const uint8_t*>(address);
  return byte >= mapped_ && byte < mapped_ + mapped_nbytes_;
}

}  // namespace tvm_interop

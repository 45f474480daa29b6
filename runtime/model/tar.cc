#include "runtime/model/tar.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/model/error.h"
#include "runtime/model/sha256.h"

namespace tvm_interop {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kChunk = size_t{1} << 20;

// Reads a source forwards, and adds everything it reads to the digest of the whole source.
class Reader {
 public:
  Reader(const Source& source, bool with_digest)
      : source_(source), whole_(with_digest ? std::make_unique<Sha256>() : nullptr) {}

  uint64_t offset() const { return offset_; }
  uint64_t left() const { return source_.nbytes() - offset_; }

  // Reads bytes, and adds them to the digest of the whole source. Also adds them to `digest`,
  // unless `digest` is null.
  void Read(void* to, size_t nbytes, Sha256* digest = nullptr) {
    if (nbytes > left()) {
      throw ArtifactError("it is truncated or not an artifact of tvm_interop", kCopyAgain);
    }
    source_.Read(offset_, to, nbytes);
    offset_ += nbytes;
    if (whole_ != nullptr && digest != nullptr) {
      Sha256::UpdateBoth(whole_.get(), digest, to, nbytes);
    } else if (whole_ != nullptr || digest != nullptr) {
      (whole_ != nullptr ? whole_.get() : digest)->Update(to, nbytes);
    }
  }

  // Returns the SHA-256 of the next `nbytes` bytes, and keeps them in `data` unless it is null.
  std::string ReadBody(uint64_t nbytes, std::string* data) {
    Sha256 digest;
    if (data != nullptr) {
      data->resize(nbytes);
      Read(data->data(), nbytes, &digest);
      return digest.Digest();
    }
    std::vector<char> chunk(std::min<uint64_t>(nbytes, kChunk));
    while (nbytes > 0) {
      const size_t taken = std::min<uint64_t>(nbytes, chunk.size());
      Read(chunk.data(), taken, &digest);
      nbytes -= taken;
    }
    return digest.Digest();
  }

  std::string WholeDigest() {
    ReadBody(left(), nullptr);
    return whole_->Digest();
  }

 private:
  const Source& source_;
  std::unique_ptr<Sha256> whole_;
  uint64_t offset_ = 0;
};

[[noreturn]] void RefuseHeader(const char* why) {
  throw ArtifactError(
      std::string("it is truncated or not an artifact of tvm_interop (") + why + ")", kCopyAgain);
}

// A number of a header. If the first bit is set, it is a binary number. Otherwise it consists of
// octal digits, and ends with a space or a zero.
uint64_t NumberAt(const unsigned char* field, size_t size) {
  uint64_t number = 0;
  if (field[0] == 0x80) {
    for (size_t i = 1; i < size; ++i) {
      if (number >> 55 != 0) RefuseHeader("a number is too large");
      number = number << 8 | field[i];
    }
    return number;
  }
  size_t i = 0;
  while (i < size && field[i] == ' ') ++i;
  for (; i < size && field[i] != ' ' && field[i] != 0; ++i) {
    if (field[i] < '0' || field[i] > '7') RefuseHeader("invalid header");
    number = number << 3 | static_cast<uint64_t>(field[i] - '0');
  }
  return number;
}

struct Header {
  std::string name;
  uint64_t nbytes;
};

Header HeaderIn(const unsigned char* block, uint64_t left) {
  uint64_t sum = 8 * ' ';  // The field of the sum itself counts as spaces.
  for (size_t i = 0; i < kBlock; ++i) sum += i < 148 || i >= 156 ? block[i] : 0;
  if (NumberAt(block + 148, 8) != sum) RefuseHeader("bad checksum");
  const auto text = [&](size_t begin, size_t size) {
    const char* at = reinterpret_cast<const char*>(block) + begin;
    return std::string(at, strnlen(at, size));
  };
  Header header{text(0, 100), 0};
  const std::string prefix = std::memcmp(block + 257, "ustar\0", 6) == 0 ? text(345, 155) : "";
  if (!prefix.empty()) header.name = prefix + "/" + header.name;
  const unsigned char type = block[156];
  if (type != '0' && type != 0) {
    throw ArtifactError("its member `" + header.name + "` is not a plain file (type " +
                        std::to_string(type) + "); artifacts hold only plain files");
  }
  header.nbytes = NumberAt(block + 124, 12);
  if (header.nbytes > left) {
    throw ArtifactError("it is truncated: `" + header.name + "` should have " +
                            std::to_string(header.nbytes) + " bytes, and the file has " +
                            std::to_string(left) + " left",
                        kCopyAgain);
  }
  return header;
}

}  // namespace

std::map<std::string, Member> ReadTar(const Source& source,
                                      const std::function<int64_t(const std::string&)>& most_bytes,
                                      const std::string& sha256) {
  Reader reader(source, !sha256.empty());
  std::map<std::string, Member> members;
  unsigned char block[kBlock];
  for (;;) {
    reader.Read(block, kBlock);
    if (std::all_of(block, block + kBlock, [](unsigned char byte) { return byte == 0; })) break;
    const Header header = HeaderIn(block, reader.left());
    if (members.count(header.name) > 0) {
      throw ArtifactError("it has two members `" + header.name + "`");
    }
    const int64_t most = most_bytes(header.name);
    if (most >= 0 && header.nbytes > static_cast<uint64_t>(most)) {
      throw ArtifactError("its `" + header.name + "` has " + std::to_string(header.nbytes) +
                          " bytes, and at most " + std::to_string(most) + " are allowed");
    }
    Member& member = members[header.name];
    member.offset = reader.offset();
    member.nbytes = header.nbytes;
    member.sha256 = reader.ReadBody(header.nbytes, most >= 0 ? &member.data : nullptr);
    unsigned char padding[kBlock];
    reader.Read(padding, (kBlock - header.nbytes % kBlock) % kBlock);
  }
  if (!sha256.empty()) {
    const std::string found = reader.WholeDigest();
    std::string wanted = sha256;
    for (char& letter : wanted) letter = static_cast<char>(std::tolower(letter));
    if (found != wanted) {
      throw ArtifactError("its SHA-256 is " + found + ", not " + sha256 +
                              ": it is not the file that you mean, and nothing in it was used",
                          "give the file that has this SHA-256");
    }
  }
  return members;
}

}  // namespace tvm_interop

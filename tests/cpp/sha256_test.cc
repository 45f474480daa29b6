#include "runtime/model/sha256.h"

#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace {

using namespace tvm_interop;  // NOLINT: this file is about nothing else.

std::string DigestOf(const std::string& text, size_t piece) {
  Sha256 digest;
  for (size_t at = 0; at < text.size(); at += piece) {
    digest.Update(text.data() + at, std::min(piece, text.size() - at));
  }
  return digest.Digest();
}

// The examples come from FIPS 180-4.
TEST_CASE(KnownDigests) {
  CHECK_EQ(DigestOf("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(DigestOf("abc", 1), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(DigestOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 7),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(DigestOf(std::string(1000000, 'a'), 1000),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE(PiecesDoNotMatter) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t size : {55, 56, 63, 64, 65, 119, 120, 128, 300}) {
    const std::string whole = DigestOf(text.substr(0, size), size);
    for (size_t piece : {1, 3, 64, 100}) CHECK_EQ(DigestOf(text.substr(0, size), piece), whole);
  }
}

TEST_CASE(TwoDigestsOfTheSameBytes) {
  std::string text;
  for (int i = 0; i < 700; ++i) text += static_cast<char>(i * i + 3 * i);
  for (size_t before : {0, 1, 64, 100, 128}) {
    for (size_t size = 0; size < 300; ++size) {
      const std::string start = text.substr(0, before), rest = text.substr(before, size);
      Sha256 one, other;
      one.Update(start.data(), start.size());
      Sha256::UpdateBoth(&one, &other, rest.data(), size / 3);
      Sha256::UpdateBoth(&one, &other, rest.data() + size / 3, size - size / 3);
      CHECK_EQ(one.Digest(), DigestOf(start + rest, 1000));
      CHECK_EQ(other.Digest(), DigestOf(rest, 1000));
    }
  }
}

TEST_CASE(InstructionsGiveTheSameAsPlainCode) {
  if (!HasShaInstructions()) return;
  std::vector<uint8_t> data(64 * 5);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * i);
  uint32_t one[8], other[8];
  for (int i = 0; i < 8; ++i) one[i] = other[i] = 0x01234567u * static_cast<uint32_t>(i + 1);
  AddBlocksPortably(one, data.data(), 5);
  AddBlocksByInstructions(other, data.data(), 5);
  CHECK_EQ(std::memcmp(one, other, sizeof(one)), 0);
  for (uint32_t& word : other) word += 5;
  uint32_t third[8];
  std::memcpy(third, other, sizeof(third));
  uint32_t plain[8];
  std::memcpy(plain, other, sizeof(plain));
  AddBlocksToBothByInstructions(other, third, data.data(), 3);
  AddBlocksPortably(plain, data.data(), 3);
  CHECK_EQ(std::memcmp(plain, other, sizeof(plain)), 0);
  CHECK_EQ(std::memcmp(plain, third, sizeof(plain)), 0);
}

}  // namespace

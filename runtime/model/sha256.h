#ifndef RUNTIME_MODEL_SHA256_H_
#define RUNTIME_MODEL_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tvm_interop {

// Computes a SHA-256 (FIPS 180-4), piece by piece. Uses the SHA instructions of x86-64 where the
// CPU has them.
class Sha256 {
 public:
  Sha256();
  void Update(const void* data, size_t bytes);
  // Adds the same bytes to two digests. With the SHA instructions, this takes little longer than
  // one `Update` if both digests have had whole blocks of 64 bytes so far.
  static void UpdateBoth(Sha256* one, Sha256* other, const void* data, size_t bytes);
  // Returns the digest in hexadecimal. The object must not be used afterwards.
  std::string Digest();

 private:
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> rest_;  // the bytes that do not fill a block yet
  size_t num_rest_ = 0;
  uint64_t num_bytes_ = 0;
};

// Whether the functions below may use the SHA instructions. Only tests change it.
bool HasShaInstructions();
// The two functions add whole blocks of 64 bytes to `state`: the first without the SHA
// instructions, the second with them.
void AddBlocksPortably(uint32_t* state, const uint8_t* data, size_t blocks);
void AddBlocksByInstructions(uint32_t* state, const uint8_t* data, size_t blocks);
// Adds the same blocks to two states, with the SHA instructions.
void AddBlocksToBothByInstructions(uint32_t* one, uint32_t* other, const uint8_t* data,
                                   size_t blocks);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_SHA256_H_

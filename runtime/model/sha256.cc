#include "runtime/model/sha256.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tvm_interop {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t Rotated(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

bool MayUseInstructions() {
  static const bool may_use = HasShaInstructions();
  return may_use;
}

void AddBlocks(uint32_t* state, const uint8_t* data, size_t blocks) {
  (MayUseInstructions() ? AddBlocksByInstructions : AddBlocksPortably)(state, data, blocks);
}

}  // namespace

void AddBlocksPortably(uint32_t* state, const uint8_t* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    uint32_t word[64];
    for (int i = 0; i < 16; ++i) word[i] = BigEndian(data + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t a = word[i - 15], b = word[i - 2];
      word[i] = word[i - 16] + (Rotated(a, 7) ^ Rotated(a, 18) ^ a >> 3) + word[i - 7] +
                (Rotated(b, 17) ^ Rotated(b, 19) ^ b >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; ++i) {
      const uint32_t first = h + (Rotated(e, 6) ^ Rotated(e, 11) ^ Rotated(e, 25)) +
                             ((e & f) ^ (~e & g)) + kRound[i] + word[i];
      const uint32_t second =
          (Rotated(a, 2) ^ Rotated(a, 13) ^ Rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first;
      d = c, c = b, b = a, a = first + second;
    }
    const uint32_t after[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += after[i];
  }
}

#if defined(__x86_64__)

bool HasShaInstructions() {
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_SSE4_1) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & 1u << 29) != 0;
}

namespace {

// The SHA instructions keep a state in two registers, (a, b, e, f) and (c, d, g, h). Each
// instruction does two rounds. Four words of the message are computed at a time from the sixteen
// words before them.
//
// A round needs the result of the round before it. So with one state, the processor's units for
// these instructions are idle for half of the time. The rounds of a second state use the idle time.
// Both states take the same message, so its words are computed only once.
template <int kStates>
__attribute__((target("sha,sse4.1"))) void AddBlocksTo(uint32_t* const* states, const uint8_t* data,
                                                       size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef[kStates], cdgh[kStates];
  for (int s = 0; s < kStates; ++s) {
    const auto* state = reinterpret_cast<const __m128i*>(states[s]);
    const __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128(state), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(state + 1), 0x1b);
    abef[s] = _mm_alignr_epi8(abcd, efgh, 8);
    cdgh[s] = _mm_blend_epi16(efgh, abcd, 0xf0);
  }
  for (; blocks > 0; --blocks, data += 64) {
    __m128i abef_before[kStates], cdgh_before[kStates];
    for (int s = 0; s < kStates; ++s) abef_before[s] = abef[s], cdgh_before[s] = cdgh[s];
    __m128i words[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& word = words[i % 4];
      if (i < 4) {
        const auto* at = reinterpret_cast<const __m128i*>(data) + i;
        word = _mm_shuffle_epi8(_mm_loadu_si128(at), swap);
      } else {
        const __m128i before = words[(i + 3) % 4];
        word = _mm_add_epi32(_mm_sha256msg1_epu32(word, words[(i + 1) % 4]),
                             _mm_alignr_epi8(before, words[(i + 2) % 4], 4));
        word = _mm_sha256msg2_epu32(word, before);
      }
      const auto* constants = reinterpret_cast<const __m128i*>(kRound) + i;
      const __m128i sum = _mm_add_epi32(word, _mm_loadu_si128(constants));
      const __m128i upper = _mm_shuffle_epi32(sum, 0x0e);
      for (int s = 0; s < kStates; ++s) cdgh[s] = _mm_sha256rnds2_epu32(cdgh[s], abef[s], sum);
      for (int s = 0; s < kStates; ++s) abef[s] = _mm_sha256rnds2_epu32(abef[s], cdgh[s], upper);
    }
    for (int s = 0; s < kStates; ++s) {
      abef[s] = _mm_add_epi32(abef[s], abef_before[s]);
      cdgh[s] = _mm_add_epi32(cdgh[s], cdgh_before[s]);
    }
  }
  for (int s = 0; s < kStates; ++s) {
    auto* state = reinterpret_cast<__m128i*>(states[s]);
    const __m128i feba = _mm_shuffle_epi32(abef[s], 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh[s], 0xb1);
    _mm_storeu_si128(state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(state + 1, _mm_alignr_epi8(dchg, feba, 8));
  }
}

}  // namespace

void AddBlocksByInstructions(uint32_t* state, const uint8_t* data, size_t blocks) {
  uint32_t* const states[] = {state};
  AddBlocksTo<1>(states, data, blocks);
}

void AddBlocksToBothByInstructions(uint32_t* one, uint32_t* other, const uint8_t* data,
                                   size_t blocks) {
  uint32_t* const states[] = {one, other};
  AddBlocksTo<2>(states, data, blocks);
}

#else

bool HasShaInstructions() { return false; }
void AddBlocksByInstructions(uint32_t* state, const uint8_t* data, size_t blocks) {
  AddBlocksPortably(state, data, blocks);
}
void AddBlocksToBothByInstructions(uint32_t* one, uint32_t* other, const uint8_t* data,
                                   size_t blocks) {
  AddBlocksPortably(one, data, blocks);
  AddBlocksPortably(other, data, blocks);
}

#endif

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::Update(const void* data, size_t bytes) {
  const auto* next = static_cast<const uint8_t*>(data);
  num_bytes_ += bytes;
  if (num_rest_ > 0) {
    const size_t taken = std::min(bytes, rest_.size() - num_rest_);
    std::memcpy(rest_.data() + num_rest_, next, taken);
    num_rest_ += taken, next += taken, bytes -= taken;
    if (num_rest_ < rest_.size()) return;
    AddBlocks(state_.data(), rest_.data(), 1);
    num_rest_ = 0;
  }
  AddBlocks(state_.data(), next, bytes / rest_.size());
  num_rest_ = bytes % rest_.size();
  if (num_rest_ > 0) std::memcpy(rest_.data(), next + (bytes - num_rest_), num_rest_);
}

void Sha256::UpdateBoth(Sha256* one, Sha256* other, const void* data, size_t bytes) {
  const size_t block = one->rest_.size();
  const bool is_aligned = one->num_rest_ == 0 && other->num_rest_ == 0;
  const size_t blocks = is_aligned && MayUseInstructions() ? bytes / block : 0;
  const auto* next = static_cast<const uint8_t*>(data);
  if (blocks > 0) {
    AddBlocksToBothByInstructions(one->state_.data(), other->state_.data(), next, blocks);
  }
  for (Sha256* each : {one, other}) {
    each->num_bytes_ += blocks * block;
    each->Update(next + blocks * block, bytes - blocks * block);
  }
}

std::string Sha256::Digest() {
  const uint64_t bits = num_bytes_ * 8;
  uint8_t end[72] = {0x80};
  const size_t padding = (num_rest_ < 56 ? 56 : 120) - num_rest_;
  for (int i = 0; i < 8; ++i) end[padding + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  Update(end, padding + 8);
  std::string text;
  for (uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

}  // namespace tvm_interop

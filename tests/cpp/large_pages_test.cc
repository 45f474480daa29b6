#include "runtime/core/large_pages.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cpp/check.h"

using tvm_interop::kLargePage;
using tvm_interop::ZerosInLargePages;

namespace {

struct Piece {
  std::shared_ptr<char> memory;
  size_t nbytes;
};

bool IsZero(const Piece& piece) {
  return std::all_of(piece.memory.get(), piece.memory.get() + piece.nbytes,
                     [](char byte) { return byte == 0; });
}

// The number of pages of the process's address space.
size_t Pages() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST_CASE(PiecesAreZeroAlignedAndApart) {
  std::vector<Piece> pieces;
  for (const size_t nbytes : {1, 64, 20000, 65536, 100001, 3 << 20, 40 << 20, 20000, 17 << 20}) {
    pieces.push_back({ZerosInLargePages(nbytes), nbytes});
    CHECK(reinterpret_cast<uintptr_t>(pieces.back().memory.get()) % 64 == 0);
    CHECK(IsZero(pieces.back()));
    std::memset(pieces.back().memory.get(), static_cast<int>(pieces.size()), nbytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const char* const begin = pieces[i].memory.get();
    CHECK(std::all_of(begin, begin + pieces[i].nbytes,
                      [&](char byte) { return byte == static_cast<char>(i + 1); }));
  }
}

TEST_CASE(SmallPiecesShareLargePages) {
  const Piece one{ZerosInLargePages(100000), 100000}, other{ZerosInLargePages(100000), 100000};
  const auto apart = other.memory.get() - one.memory.get();
  CHECK(apart > 0 && static_cast<size_t>(apart) < kLargePage);
}

TEST_CASE(MemoryIsGivenBack) {
  const auto take_and_drop = [] {
    std::vector<std::shared_ptr<char>> held;
    for (int i = 0; i < 64; ++i) held.push_back(ZerosInLargePages(size_t{1} << 20));
  };
  take_and_drop();
  const size_t before = Pages();
  for (int i = 0; i < 100; ++i) take_and_drop();
  CHECK(Pages() < before + (size_t{64} << 20) / 4096);
}

TEST_CASE(APieceOutlivesTheThreadThatAskedForIt) {
  std::vector<Piece> pieces(4);
  std::vector<std::thread> threads;
  for (Piece& piece : pieces) {
    threads.emplace_back([&piece] { piece = {ZerosInLargePages(100000), 100000}; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Piece& piece : pieces) {
    CHECK(IsZero(piece));
    std::memset(piece.memory.get(), 1, piece.nbytes);
  }
}

}  // namespace

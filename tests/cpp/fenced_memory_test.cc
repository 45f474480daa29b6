#include "runtime/cpu/fenced_memory.h"

#include <signal.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/cpu/caught_fault.h"
#include "tests/cpp/check.h"

using tvm_interop::Fault;
using tvm_interop::FencedMemory;
using tvm_interop::RunCatchingFaults;
using Place = tvm_interop::FencedMemory::Place;

namespace {

std::optional<Fault> Write(const void* address) {
  return RunCatchingFaults(
      [&] { *static_cast<volatile uint8_t*>(const_cast<void*>(address)) = 1; });
}

uint8_t* Bytes(const FencedMemory& memory) { return static_cast<uint8_t*>(memory.data()); }

TEST_CASE(FencesAreNoOnesToTouch) {
  for (const size_t nbytes : {1, 64, 100, 4096, 10000}) {
    const FencedMemory first(nbytes, 64, Place::kAfterFence, 0);
    CHECK(reinterpret_cast<uintptr_t>(first.data()) % 64 == 0);
    CHECK(!Write(Bytes(first)) && !Write(Bytes(first) + nbytes - 1));
    CHECK(first.SlackIsIntact());
    const auto fault = Write(Bytes(first) - 1);
    CHECK(fault && fault->signal == SIGSEGV && fault->address == Bytes(first) - 1);
    CHECK(first.Encloses(fault->address));

    const FencedMemory last(nbytes, 64, Place::kBeforeFence, 0);
    CHECK(reinterpret_cast<uintptr_t>(last.data()) % 64 == 0);
    CHECK(!Write(Bytes(last)) && !Write(Bytes(last) + nbytes - 1));
    CHECK(Write(Bytes(last) + nbytes + 63));
    CHECK(!first.Encloses(last.data()));
  }
}

TEST_CASE(SlackTellsOfWrites) {
  const FencedMemory memory(100, 64, Place::kBeforeFence, 7);
  CHECK(Bytes(memory)[0] == 7 && Bytes(memory)[99] == 7);
  CHECK(!Write(Bytes(memory) + 100));
  CHECK(!memory.SlackIsIntact());
  const FencedMemory other(100, 64, Place::kBeforeFence, 7);
  CHECK(!Write(Bytes(other) - 1));
  CHECK(!other.SlackIsIntact());
}

TEST_CASE(InputsCanBeKeptFromWrites) {
  FencedMemory memory(100, 64, Place::kAfterFence, 7);
  memory.ForbidWrites();
  CHECK(Write(memory.data()));
  CHECK(Bytes(memory)[0] == 7);
}

TEST_CASE(LargeMemoryHoldsItsContentsBetweenFences) {
  const std::vector<uint8_t> contents(size_t{5} << 20, 3);
  for (const Place place : {Place::kAfterFence, Place::kBeforeFence}) {
    const FencedMemory memory(contents.data(), contents.size(), 64, place);
    CHECK(std::memcmp(memory.data(), contents.data(), contents.size()) == 0);
    CHECK(memory.SlackIsIntact());
    CHECK(Write(place == Place::kAfterFence ? Bytes(memory) - 1 : Bytes(memory) + contents.size()));
  }
}

TEST_CASE(ADivisionByZeroIsCaught) {
  const auto fault = RunCatchingFaults([&] { raise(SIGFPE); });
  CHECK(fault && fault->signal == SIGFPE);
}

TEST_CASE(ExceptionsPass) {
  bool caught = false;
  try {
    RunCatchingFaults([] { throw std::runtime_error("as it is"); });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  CHECK(caught);
  // The exception has ended the call of `RunCatchingFaults`, which then restored the earlier
  // handlers. `Write` calls `RunCatchingFaults` anew, and so catches a later fault.
  const FencedMemory memory(8, 8, Place::kAfterFence, 0);
  CHECK(Write(Bytes(memory) - 1));
}

TEST_CASE(EachThreadCatchesItsOwn) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int turn = 0; turn < 200; ++turn) {
        const FencedMemory memory(1000, 64, Place::kBeforeFence, 0);
        CHECK(!Write(memory.data()));
        const auto fault = Write(Bytes(memory) + 4096);
        CHECK(fault && fault->address == Bytes(memory) + 4096);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool handled_before = false;

TEST_CASE(OthersFaultsGoToTheirHandlers) {
  struct sigaction mine = {};
  mine.sa_handler = [](int) { handled_before = true; };
  struct sigaction was;
  sigaction(SIGFPE, &mine, &was);
  CHECK(RunCatchingFaults([] { raise(SIGFPE); }));
  CHECK(!handled_before);
  raise(SIGFPE);
  CHECK(handled_before);
  // The fault of a thread that catches no faults goes to the earlier handler, even while another
  // thread catches faults.
  handled_before = false;
  RunCatchingFaults([] { std::thread([] { raise(SIGFPE), raise(SIGFPE); }).join(); });
  CHECK(handled_before);
  sigaction(SIGFPE, &was, nullptr);
}

}  // namespace

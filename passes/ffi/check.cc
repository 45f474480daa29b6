// The bindings that export the checker to Python. Numbers are passed as the bytes of a numpy array
// of int64.
#include <tvm/ffi/tvm_ffi.h>

#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "passes/check/stream_program.h"

namespace tvm_interop::check {
namespace {

namespace ffi = tvm::ffi;

std::vector<int64_t> Numbers(const ffi::Bytes& bytes) {
  std::vector<int64_t> numbers(bytes.size() / sizeof(int64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(int64_t));
  return numbers;
}

int ToInt(int64_t number) {
  if (number < std::numeric_limits<int>::min() || number > std::numeric_limits<int>::max()) {
    throw std::invalid_argument("the number " + std::to_string(number) +
                                " of the program does not fit into 32 bits");
  }
  return static_cast<int>(number);
}

// `waits` are pairs of an operator and an operator that it waits for. `accesses` are rows of eight
// numbers: operator, buffer, begin, end, whether the access writes, tensor, share, shares.
StreamProgram ToProgram(const ffi::Bytes& streams, const ffi::Bytes& waits,
                        const ffi::Bytes& takes_no_overlap, const ffi::Bytes& accesses) {
  StreamProgram program;
  for (int64_t stream : Numbers(streams)) program.stream_of.push_back(ToInt(stream));
  for (int64_t flag : Numbers(takes_no_overlap)) program.takes_no_overlap.push_back(flag != 0);
  program.waits.resize(program.stream_of.size());
  const std::vector<int64_t> pairs = Numbers(waits);
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    program.waits.at(static_cast<size_t>(pairs[i])).push_back(ToInt(pairs[i + 1]));
  }
  const std::vector<int64_t> rows = Numbers(accesses);
  for (size_t i = 0; i + 7 < rows.size(); i += 8) {
    const int64_t* row = &rows[i];
    program.accesses.push_back({ToInt(row[0]), ToInt(row[1]), row[2], row[3], row[4] != 0,
                                ToInt(row[5]), ToInt(row[6]), ToInt(row[7])});
  }
  return program;
}

// Returns the operators that wait for each other in a circle, if there is one, and the faults. Each
// fault is a row of five numbers: kind of fault, index of the first access, index of the second
// access, first byte, end byte.
ffi::Array<ffi::Bytes> Check(ffi::Bytes streams, ffi::Bytes waits, ffi::Bytes takes_no_overlap,
                             ffi::Bytes accesses) {
  const auto pack = [](const std::vector<int64_t>& numbers) {
    return ffi::Bytes(reinterpret_cast<const char*>(numbers.data()),
                      numbers.size() * sizeof(int64_t));
  };
  try {
    const Verdict verdict =
        CheckStreamProgram(ToProgram(streams, waits, takes_no_overlap, accesses));
    std::vector<int64_t> faults;
    for (const Fault& fault : verdict.faults) {
      faults.insert(faults.end(), {fault.kind, static_cast<int64_t>(fault.first),
                                   static_cast<int64_t>(fault.second), fault.begin, fault.end});
    }
    return {pack({verdict.circle.begin(), verdict.circle.end()}), pack(faults)};
  } catch (const std::logic_error& error) {  // The program has a bad number or is too large.
    throw ffi::Error("PlanError", std::string("the program has ") + error.what(), "");
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef().def("tvm_interop.check_stream_program", Check);
}

}  // namespace
}  // namespace tvm_interop::check

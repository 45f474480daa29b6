#include "runtime/model/cpu_features.h"

#include <algorithm>
#include <set>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tvm_interop {

#if defined(__x86_64__)

namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers Cpuid(unsigned leaf, unsigned part) {
  Registers found;
  if (__get_cpuid_count(leaf, part, &found.a, &found.b, &found.c, &found.d) == 0) return {};
  return found;
}

// The registers that the operating system saves for each thread: register XCR0.
unsigned SavedRegisters() {
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

std::set<std::string> FindFeatures() {
  const Registers basic = Cpuid(1, 0), more = Cpuid(7, 0), most = Cpuid(7, 1);
  std::set<std::string> found;
  const auto add = [&](const char* name, unsigned bits, int bit) {
    if (bits >> bit & 1u) found.insert(name);
  };
  add("sse3", basic.c, 0);
  add("ssse3", basic.c, 9);
  add("sse4.1", basic.c, 19);
  add("sse4.2", basic.c, 20);
  add("popcnt", basic.c, 23);
  add("bmi", more.b, 3);
  add("bmi2", more.b, 8);
  const bool has_xgetbv = (basic.c >> 27 & 1u) != 0;
  const unsigned saved = has_xgetbv ? SavedRegisters() : 0;
  constexpr unsigned kAvx = 0x6, kAvx512 = 0xe6;
  if ((saved & kAvx) != kAvx) return found;
  add("avx", basic.c, 28);
  add("f16c", basic.c, 29);
  add("fma", basic.c, 12);
  add("avx2", more.b, 5);
  add("avxvnni", most.a, 4);
  add("gfni", more.c, 8);
  if ((saved & kAvx512) != kAvx512) return found;
  add("avx512f", more.b, 16);
  add("avx512dq", more.b, 17);
  add("avx512cd", more.b, 28);
  add("avx512bw", more.b, 30);
  add("avx512vl", more.b, 31);
  add("avx512vnni", more.c, 11);
  add("avx512bf16", most.a, 5);
  add("avx512ifma", more.b, 21);
  add("avx512vbmi", more.c, 1);
  add("avx512vbmi2", more.c, 6);
  add("avx512bitalg", more.c, 12);
  add("avx512vpopcntdq", more.c, 14);
  add("avx512fp16", more.d, 23);
  return found;
}

}  // namespace

std::vector<std::string> CpuFeatures() {
  static const std::set<std::string> found = FindFeatures();
  return {found.begin(), found.end()};
}

std::vector<std::string> MissingCpuFeatures(const std::vector<std::string>& features) {
  const std::vector<std::string> here = CpuFeatures();
  std::vector<std::string> missing;
  for (const std::string& name : features) {
    if (!std::binary_search(here.begin(), here.end(), name)) missing.push_back(name);
  }
  return missing;
}

#else

std::vector<std::string> CpuFeatures() { return {}; }
std::vector<std::string> MissingCpuFeatures(const std::vector<std::string>&) { return {}; }

#endif

}  // namespace tvm_interop

// An artifact for a GPU, with the kernels of `fake_gpu_kernels.cc`. The fake GPU computes the same
// numbers as the kernels of `fake_artifact.h`.
#ifndef TESTS_CPP_FAKE_GPU_ARTIFACT_H_
#define TESTS_CPP_FAKE_GPU_ARTIFACT_H_

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/cpp/fake_artifact.h"

namespace tvm_interop {

template <typename Plain>
std::string BytesOf(const Plain& plain) {
  return {reinterpret_cast<const char*>(&plain), sizeof(plain)};
}

// A text as TVM saves it in a library: its length in eight bytes, then its characters.
inline std::string Saved(const std::string& text) { return BytesOf(uint64_t{text.size()}) + text; }

// Machine code for GPUs of an architecture such as 90, in which the kernels are empty sections.
inline std::string Fatbin(const std::vector<std::string>& kernels, uint32_t arch) {
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> sections(1);
  const auto add = [&](const std::string& name) {
    Elf64_Shdr section{};
    section.sh_name = static_cast<Elf64_Word>(names.size());
    names += name + '\0';
    sections.push_back(section);
  };
  for (const std::string& kernel : kernels) add(".text." + kernel);
  add(".shstrtab");
  sections.back().sh_offset = sizeof(Elf64_Ehdr);
  sections.back().sh_size = names.size();
  names.resize((names.size() + 7) / 8 * 8);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_shoff = sizeof(header) + names.size();
  header.e_shnum = static_cast<Elf64_Half>(sections.size());
  header.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
  std::string cubin = BytesOf(header) + names;
  for (const Elf64_Shdr& section : sections) cubin += BytesOf(section);
  struct {
    uint16_t kind = 2, version = 1;
    uint32_t header_nbytes = 64;
    uint64_t nbytes = 0;
    uint32_t compressed_nbytes = 0, options = 0;
    uint16_t minor = 0, major = 0;
    uint32_t arch = 0, name = 0, name_nbytes = 0;
    uint64_t flags = 0, more[2] = {0, 0};
  } entry;
  static_assert(sizeof(entry) == 64);
  entry.nbytes = cubin.size();
  entry.arch = arch;
  struct {
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1, header_nbytes = 16;
    uint64_t nbytes = 0;
  } whole;
  whole.nbytes = sizeof(entry) + cubin.size();
  return BytesOf(whole) + BytesOf(entry) + cubin;
}

// An entry of TVM's table of kernels. The kernel's parameters are `num_tensors` pointers and an
// integer of 32 bits, followed by the numbers of blocks and of threads.
inline std::string SavedKernel(const std::string& name, int num_tensors,
                               const std::string& first_tag = "blockIdx.x") {
  std::string text = Saved(name) + BytesOf(uint64_t(num_tensors) + 1);
  for (int i = 0; i < num_tensors; ++i) text += std::string("\x03\x40\x01\x00", 4);
  text += std::string("\x00\x20\x01\x00", 4) + BytesOf(uint64_t{2}) + Saved(first_tag) +
          Saved("threadIdx.x") + BytesOf(uint64_t(num_tensors) + 1);
  return text + std::string(4 * (num_tensors + 1), '\0');
}

// The modules that TVM saves for a library's code for the host.
inline std::string SavedModules(const std::string& kind, const std::string& module) {
  std::string saved = BytesOf(uint64_t{3});
  for (uint64_t end : {0, 1, 1}) saved += BytesOf(end);
  saved += BytesOf(uint64_t{1}) + BytesOf(uint64_t{1});
  return Saved(saved + Saved("_lib") + Saved(kind) + Saved(module));
}

inline std::string SavedGpuCode(uint32_t arch = 90, const std::string& first_tag = "blockIdx.x") {
  const std::vector<std::string> names{"twice_kernel", "add_one_kernel", "add_kernel",
                                       "checked_kernel"};
  std::string module = Saved("cubin") + BytesOf(uint64_t{names.size()});
  for (const std::string& name : names) {
    module += Saved(name) + SavedKernel(name, name == "add_kernel" ? 3 : 2, first_tag);
  }
  return SavedModules("cuda", module + Saved(Fatbin(names, arch)));
}

inline std::string GpuKernelCode(const std::string& gpu_code = SavedGpuCode()) {
  std::ifstream file(FAKE_GPU_KERNELS, std::ios::binary);
  std::string code{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  code.replace(code.find("PLACE OF THE GPU'S CODE"), gpu_code.size(), gpu_code);
  return code;
}

inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

inline std::string GpuPlanText(const std::string& device = "cuda:0") {
  return Replaced(PlanText(), "cpu:0", device);
}

}  // namespace tvm_interop

#endif  // TESTS_CPP_FAKE_GPU_ARTIFACT_H_

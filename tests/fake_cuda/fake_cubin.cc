#include "fake_cubin.h"

#include <elf.h>

#include <cstring>
#include <vector>

#include "fake_cuda.h"

namespace fake_cuda {
namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint16_t kCubinEntry = 2;
// The bytes of shared memory that CUDA itself takes of each block. A kernel does not declare them,
// but the size of the kernel's section in a cubin includes them.
constexpr uint64_t kReservedSharedBytes = 1024;
constexpr uint64_t kCompressed = 0x2000 | 0x8000;  // Compressed by LZ4, or by Zstandard.

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_nbytes;
  uint64_t nbytes;
};

struct FatbinEntry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_nbytes;
  uint64_t nbytes;
  uint32_t compressed_nbytes;
  uint32_t options;
  uint16_t minor;
  uint16_t major;
  uint32_t arch;
  uint32_t name;
  uint32_t name_nbytes;
  uint64_t flags;
};

// The attributes of `.nv.info`, as `cuobjdump -elf` names them.
enum Attribute : uint8_t { kMaxThreads = 0x05, kRequiredThreads = 0x10, kRegisterCount = 0x2f };

// Calls `visit(attribute, numbers)` for each attribute with several numbers in the data of a
// section.
template <typename Visit>
void VisitAttributes(const char* data, size_t nbytes, Visit&& visit) {
  constexpr uint8_t kSized = 0x04;  // An attribute in this format has a size and as many bytes.
  for (size_t at = 0; at + 4 <= nbytes;) {
    uint16_t size = 0;
    std::memcpy(&size, data + at + 2, 2);
    const bool is_sized = static_cast<uint8_t>(data[at]) == kSized;
    if (is_sized) {
      std::vector<uint32_t> numbers(size / 4);
      std::memcpy(numbers.data(), data + at + 4, numbers.size() * 4);
      visit(static_cast<uint8_t>(data[at + 1]), numbers);
    }
    at += 4 + (is_sized ? size : 0);
  }
}

void ReadCubin(const char* cubin, Kernels* kernels) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(cubin);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(cubin + header->e_shoff);
  const char* names = cubin + sections[header->e_shstrndx].sh_offset;
  const auto rest = [&](const Elf64_Shdr& section, const std::string& prefix) {
    const std::string name = names + section.sh_name;
    return name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : "";
  };
  std::vector<std::string> symbols;
  for (int s = 0; s < header->e_shnum; ++s) {
    const std::string kernel = rest(sections[s], ".text.");
    if (!kernel.empty()) (*kernels)[kernel];
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const char* texts = cubin + sections[sections[s].sh_link].sh_offset;
    const auto* entries = reinterpret_cast<const Elf64_Sym*>(cubin + sections[s].sh_offset);
    for (size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); ++i) {
      symbols.emplace_back(texts + entries[i].st_name);
    }
  }
  for (int s = 0; s < header->e_shnum; ++s) {
    const Elf64_Shdr& section = sections[s];
    const std::string of_shared = rest(section, ".nv.shared."),
                      of_info = rest(section, ".nv.info.");
    if (kernels->count(of_shared) && section.sh_size > kReservedSharedBytes) {
      (*kernels)[of_shared].shared_bytes = section.sh_size - kReservedSharedBytes;
    }
    if (std::string(names + section.sh_name) == ".nv.info") {
      VisitAttributes(cubin + section.sh_offset, section.sh_size, [&](uint8_t what, auto& numbers) {
        if (what != kRegisterCount || numbers.at(0) >= symbols.size()) return;
        const auto found = kernels->find(symbols[numbers[0]]);
        if (found != kernels->end()) found->second.registers = numbers.at(1);
      });
    } else if (kernels->count(of_info)) {
      VisitAttributes(cubin + section.sh_offset, section.sh_size, [&](uint8_t what, auto& numbers) {
        if (what != kMaxThreads && what != kRequiredThreads) return;
        (*kernels)[of_info].most_threads = int64_t{numbers.at(0)} * numbers.at(1) * numbers.at(2);
      });
    }
  }
}

}  // namespace

int ReadFatbin(const void* data, int arch, Kernels* kernels) {
  FatbinHeader header;
  std::memcpy(&header, data, sizeof(header));
  if (header.magic != kFatbinMagic) return kInvalidImage;
  const char* at = static_cast<const char*>(data) + header.header_nbytes;
  const char* end = at + header.nbytes;
  while (at < end) {
    FatbinEntry entry;
    std::memcpy(&entry, at, sizeof(entry));
    // A cubin runs on GPUs with the same major version and the same or a larger minor version.
    const auto made_for = static_cast<int>(entry.arch);
    if (entry.kind == kCubinEntry && made_for / 10 == arch / 10 && made_for <= arch) {
      if ((entry.flags & kCompressed) != 0) return kInvalidImage;
      ReadCubin(at + entry.header_nbytes, kernels);
      return kSuccess;
    }
    at += entry.header_nbytes + entry.nbytes;
  }
  return kNoImageForDevice;
}

}  // namespace fake_cuda

#include "runtime/model/elf_imports.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>

namespace tvm_interop {
namespace {

[[noreturn]] void Refuse() {
  throw std::runtime_error("it is not a shared library of this system");
}

// Returns a copy of the structure at `offset`. The file may be damaged, so nothing in it is
// trusted.
template <typename Struct>
Struct At(const std::string& code, uint64_t offset) {
  Struct copy;
  if (offset > code.size() || sizeof(copy) > code.size() - offset) Refuse();
  std::memcpy(&copy, code.data() + offset, sizeof(copy));
  return copy;
}

// Calls `visit` with the name and the place of each symbol that the library imports.
void ForEachImport(const std::string& code,
                   const std::function<void(const std::string&, uint64_t)>& visit) {
  const auto header = At<ElfW(Ehdr)>(code, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(ElfW(Shdr))) {
    Refuse();
  }
  for (int i = 0; i < header.e_shnum; ++i) {
    const auto table = At<ElfW(Shdr)>(code, header.e_shoff + i * sizeof(ElfW(Shdr)));
    if (table.sh_type != SHT_DYNSYM) continue;
    if (table.sh_link >= header.e_shnum || table.sh_size > code.size()) Refuse();
    const auto names = At<ElfW(Shdr)>(code, header.e_shoff + table.sh_link * sizeof(ElfW(Shdr)));
    for (uint64_t s = 1; s < table.sh_size / sizeof(ElfW(Sym)); ++s) {
      const uint64_t place = table.sh_offset + s * sizeof(ElfW(Sym));
      const auto symbol = At<ElfW(Sym)>(code, place);
      if (symbol.st_shndx != SHN_UNDEF) continue;
      if (symbol.st_name >= names.sh_size || names.sh_offset > code.size() ||
          names.sh_size > code.size() - names.sh_offset) {
        Refuse();
      }
      const char* text = code.data() + names.sh_offset + symbol.st_name;
      visit(std::string(text, strnlen(text, names.sh_size - symbol.st_name)), place);
    }
    return;
  }
  Refuse();
}

// A relocation writes the address of a symbol into a slot of the loaded library.
struct Relocations {
  const ElfW(Rela) * begin = nullptr;
  size_t count = 0;
};

bool IsAddressOfSymbol(const ElfW(Rela) & relocation) {
  const auto type = ELF64_R_TYPE(relocation.r_info);
#if defined(__x86_64__)
  return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT || type == R_X86_64_64;
#elif defined(__aarch64__)
  return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT || type == R_AARCH64_ABS64;
#else
  return false;
#endif
}

void WriteSlot(ElfW(Addr) slot, ElfW(Addr) address) {
  // Make the page writable: the loader may have made it read-only after filling the slots.
  const auto page = static_cast<ElfW(Addr)>(sysconf(_SC_PAGESIZE));
  void* begin = reinterpret_cast<void*>(slot / page * page);
  if (mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) {
    throw std::runtime_error("the system does not let the kernels' imports be set");
  }
  std::memcpy(reinterpret_cast<void*>(slot), &address, sizeof(address));
}

}  // namespace

std::vector<std::string> ImportsOf(const std::string& code) {
  std::vector<std::string> imports;
  ForEachImport(code, [&](const std::string& name, uint64_t) { imports.push_back(name); });
  return imports;
}

void MakeWeak(std::string* code, const std::vector<std::string>& names) {
  std::vector<uint64_t> places;
  ForEachImport(*code, [&](const std::string& name, uint64_t place) {
    if (std::find(names.begin(), names.end(), name) != names.end()) places.push_back(place);
  });
  for (uint64_t place : places) {
    auto symbol = At<ElfW(Sym)>(*code, place);
    symbol.st_info = ELF64_ST_INFO(STB_WEAK, ELF64_ST_TYPE(symbol.st_info));
    std::memcpy(&(*code)[place], &symbol, sizeof(symbol));
  }
}

void SetImport(void* handle, const std::string& name, void* function) {
  link_map* library = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0) {
    throw std::runtime_error("the loader does not tell where the kernels are");
  }
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  Relocations tables[2];
  // In the dynamic section of a loaded library, the loader has already replaced the addresses by
  // addresses of this process.
  for (const ElfW(Dyn)* entry = library->l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto address = entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_RELA) tables[0].begin = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_RELASZ) tables[0].count = entry->d_un.d_val / sizeof(ElfW(Rela));
    if (entry->d_tag == DT_JMPREL) tables[1].begin = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_PLTRELSZ) tables[1].count = entry->d_un.d_val / sizeof(ElfW(Rela));
  }
  if (symbols == nullptr || names == nullptr) return;
  for (const Relocations& table : tables) {
    for (size_t i = 0; table.begin != nullptr && i < table.count; ++i) {
      const ElfW(Rela) & relocation = table.begin[i];
      const auto index = ELF64_R_SYM(relocation.r_info);
      if (index == 0 || name != names + symbols[index].st_name) continue;
      if (!IsAddressOfSymbol(relocation)) {
        throw std::runtime_error("it imports `" + name + "` in a way that is not known");
      }
      WriteSlot(library->l_addr + relocation.r_offset,
                reinterpret_cast<ElfW(Addr)>(function) +
                    (ELF64_R_TYPE(relocation.r_info) == R_X86_64_64 ? relocation.r_addend : 0));
    }
  }
}

}  // namespace tvm_interop

#include "runtime/core/shared_library.h"

#include <dlfcn.h>

#include <stdexcept>

namespace tvm_interop {

SharedLibrary::SharedLibrary(const std::string& path)
    : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* why = dlerror();
  throw std::runtime_error(why != nullptr ? why : "`" + path + "` does not load");
}

void* SharedLibrary::FindSymbol(const char* name) const {
  void* symbol = dlsym(handle_, name);
  if (symbol == nullptr) throw std::runtime_error("`" + path_ + "` has no `" + name + "`");
  return symbol;
}

}  // namespace tvm_interop

#ifndef RUNTIME_CORE_SHARED_LIBRARY_H_
#define RUNTIME_CORE_SHARED_LIBRARY_H_

#include <string>

namespace tvm_interop {

// A shared library that was found at run time. Never unloaded: those that we load start threads or
// keep a GPU's state.
class SharedLibrary {
 public:
  // Throws std::runtime_error with the loader's own words where it does not load.
  explicit SharedLibrary(const std::string& path);

  // The function of this name and type. Throws std::runtime_error where there is none.
  template <typename Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(FindSymbol(name));
  }

 private:
  void* FindSymbol(const char* name) const;

  std::string path_;
  void* handle_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_SHARED_LIBRARY_H_

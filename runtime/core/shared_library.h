#ifndef RUNTIME_CORE_SHARED_LIBRARY_H_
#define RUNTIME_CORE_SHARED_LIBRARY_H_

#include <string>

namespace tvm_interop {

// A shared library that is loaded at run time. It is never unloaded, because the libraries that we
// load start threads or keep state of a GPU.
class SharedLibrary {
 public:
  // Throws std::runtime_error with the loader's own message if the library does not load.
  explicit SharedLibrary(const std::string& path);

  // Returns the library's function `name`. Throws std::runtime_error if there is none.
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

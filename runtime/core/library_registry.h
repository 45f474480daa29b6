#ifndef RUNTIME_CORE_LIBRARY_REGISTRY_H_
#define RUNTIME_CORE_LIBRARY_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace tvm_interop {

// Libraries by name. Each library is loaded once in a process and is never unloaded. Never destroy
// a registry: kernels may outlive every static object.
template <typename Library>
class LibraryRegistry {
 public:
  using Loader = std::unique_ptr<Library> (*)(const std::string& path);

  explicit LibraryRegistry(std::map<std::string, Loader> loaders) : loaders_(std::move(loaders)) {}

  // Returns the library `name`, and loads it from the file at `path` the first time. Throws
  // std::runtime_error with the reason if the library cannot be used.
  Library& Load(const std::string& name, const std::string& path) {
    const auto loader = loaders_.find(name);
    if (loader == loaders_.end()) {
      throw std::runtime_error("there is no kernel library `" + name + "`");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Library>& library = loaded_[name];
    if (library == nullptr) library = loader->second(path);
    return *library;
  }

  // Returns the library `name`, or null if it has not been loaded.
  Library* Find(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = loaded_.find(name);
    return found == loaded_.end() ? nullptr : found->second.get();
  }

 private:
  std::map<std::string, Loader> loaders_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Library>> loaded_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_LIBRARY_REGISTRY_H_

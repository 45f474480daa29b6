#ifndef RUNTIME_CORE_OWNED_H_
#define RUNTIME_CORE_OWNED_H_

#include <utility>

namespace tvm_interop {

// Owns a handle of a C library and destroys it with the library's function.
template <typename Handle>
class Owned {
 public:
  Owned() = default;
  Owned(Handle handle, int (*destroy)(Handle)) : handle_(handle), destroy_(destroy) {}
  Owned(Owned&& other) noexcept { *this = std::move(other); }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  int (*destroy_)(Handle) = nullptr;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OWNED_H_

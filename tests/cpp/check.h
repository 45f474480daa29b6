// The few macros that the C++ tests need. A test framework would be one more package to install.
#ifndef TESTS_CPP_CHECK_H_
#define TESTS_CPP_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace check {

struct Registry {
  std::vector<std::pair<std::string, std::function<void()>>> cases;
  static Registry& Get() {
    static Registry registry;
    return registry;
  }
};

struct Register {
  Register(const char* name, std::function<void()> body) {
    Registry::Get().cases.emplace_back(name, std::move(body));
  }
};

[[noreturn]] inline void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::exit(1);
}

}  // namespace check

#define TEST_CASE(name)                                  \
  static void name();                                    \
  static ::check::Register register_##name(#name, name); \
  static void name()

#define CHECK(condition) \
  if (!(condition)) ::check::Fail(__FILE__, __LINE__, "CHECK failed: " #condition)

#define CHECK_EQ(left, right)                                                  \
  do {                                                                         \
    const auto left_value = (left);                                            \
    const auto right_value = (right);                                          \
    if (!(left_value == right_value))                                          \
      ::check::Fail(__FILE__, __LINE__, "CHECK failed: " #left " == " #right); \
  } while (false)

#define CHECK_THROWS(expression, exception_type)                                  \
  do {                                                                            \
    bool caught = false;                                                          \
    try {                                                                         \
      expression;                                                                 \
    } catch (const exception_type&) {                                             \
      caught = true;                                                              \
    }                                                                             \
    if (!caught) ::check::Fail(__FILE__, __LINE__, #expression " did not throw"); \
  } while (false)

int main() {
  for (auto& [name, body] : ::check::Registry::Get().cases) {
    body();
    std::printf("ok %s\n", name.c_str());
  }
  std::printf("%zu passed, 0 failed\n", ::check::Registry::Get().cases.size());
  return 0;
}

#endif  // TESTS_CPP_CHECK_H_

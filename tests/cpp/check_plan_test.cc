#include "runtime/core/check_plan.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cpp/check.h"

namespace tvm_interop {
namespace {

struct Op {
  std::string name;
  int stream;
  std::vector<int> waits;
};

// Returns what is wrong with a plan for two streams, or an empty string if nothing is wrong.
std::string Fault(const std::vector<Op>& ops) {
  try {
    CheckPlan(ops, 2);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE(APlanThatWorks) {
  CHECK_EQ(Fault({}), "");
  CHECK_EQ(Fault({{"a", 0, {}}, {"b", 1, {0}}, {"c", 0, {0, 1}}}), "");
}

TEST_CASE(AStreamThatIsNotThere) {
  CHECK_EQ(Fault({{"a", 0, {}}, {"b", 2, {}}}),
           "operator `b` is planned on stream 2, but there are 2");
  CHECK_EQ(Fault({{"a", -1, {}}}), "operator `a` is planned on stream -1, but there are 2");
}

TEST_CASE(AWaitForWhatIsNotEarlier) {
  CHECK_EQ(Fault({{"a", 0, {1}}, {"b", 1, {}}}),
           "operator `a` waits for operator 1, which is not planned before it");
  CHECK_EQ(Fault({{"a", 0, {0}}}),
           "operator `a` waits for operator 0, which is not planned before it");
  CHECK_EQ(Fault({{"a", 0, {-1}}}),
           "operator `a` waits for operator -1, which is not planned before it");
}

}  // namespace
}  // namespace tvm_interop

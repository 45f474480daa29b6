#include "runtime/model/tvm_imports.h"

#include <set>

namespace tvm_interop {
namespace {

std::set<std::string> MakeList() {
  std::set<std::string> names{kRaiseImport,
                              "memcpy",
                              "memmove",
                              "memset",
                              "memcmp",
                              "__stack_chk_fail",
                              "__cxa_finalize",
                              "__gmon_start__",
                              "_ITM_deregisterTMCloneTable",
                              "_ITM_registerTMCloneTable"};
  for (const char* function :
       {"acos",     "acosh",     "asin",  "asinh",  "atan",      "atan2", "atanh",     "ceil",
        "copysign", "cos",       "cosh",  "erf",    "erfc",      "exp",   "exp10",     "exp2",
        "expm1",    "fabs",      "floor", "fma",    "fmax",      "fmin",  "fmod",      "hypot",
        "ldexp",    "lgamma",    "log",   "log10",  "log1p",     "log2",  "nearbyint", "nextafter",
        "pow",      "remainder", "rint",  "round",  "roundeven", "sin",   "sincos",    "sinh",
        "sqrt",     "tan",       "tanh",  "tgamma", "trunc"}) {
    names.insert(function);
    names.insert(std::string(function) + "f");
  }
  // Functions of the compiler's own library, for conversions of small floats and for integers of
  // 128 bits.
  for (const char* function :
       {"__divti3", "__extendhfdf2", "__extendhfsf2", "__gnu_f2h_ieee", "__gnu_h2f_ieee",
        "__modti3", "__multi3", "__truncdfbf2", "__truncdfhf2", "__truncsfbf2", "__truncsfhf2",
        "__udivti3", "__umodti3"}) {
    names.insert(function);
  }
  return names;
}

}  // namespace

bool IsKnownImport(const std::string& name) {
  static const std::set<std::string> names = MakeList();
  return names.count(name) > 0;
}

}  // namespace tvm_interop

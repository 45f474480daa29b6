// Macros that compare our declarations of a vendor's interface with the vendor's own header. CMake
// includes this file at the head of each source of `vendor_headers_test`. So the files in
// `runtime/cpu/onednn/kinds` compare their own declarations.
#ifndef TESTS_CPP_VENDOR_HEADERS_H_
#define TESTS_CPP_VENDOR_HEADERS_H_

#include <type_traits>

#if __has_include(<oneapi/dnnl/dnnl.h>)
#define HAS_ONEDNN 1
#include <oneapi/dnnl/dnnl.h>
#endif

namespace vendor_headers {

// Whether callers pass an `A` in the same way as a `B`. They do if both have the same size, and
// both are addresses or the same kind of number.
template <typename A, typename B>
constexpr bool PassedAlike() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else {
    constexpr bool kAddresses = std::is_pointer_v<A> && std::is_pointer_v<B>;
    constexpr bool kWholes = (std::is_integral_v<A> || std::is_enum_v<A>) &&
                             (std::is_integral_v<B> || std::is_enum_v<B>);
    constexpr bool kFloats = std::is_floating_point_v<A> && std::is_floating_point_v<B>;
    return sizeof(A) == sizeof(B) && (kAddresses || kWholes || kFloats);
  }
}

template <typename Ours, typename Theirs>
struct Same : std::false_type {};

template <typename R, typename... A, typename S, typename... B>
struct Same<R (*)(A...), S (*)(B...)> {
  static constexpr bool Value() {
    if constexpr (sizeof...(A) != sizeof...(B)) {
      return false;
    } else {
      return PassedAlike<R, S>() && (PassedAlike<A, B>() && ...);
    }
  }
  static constexpr bool value = Value();
};

}  // namespace vendor_headers

#define EXPECT_SAME(ours, theirs)                                                        \
  static_assert(vendor_headers::Same<ours, std::add_pointer_t<decltype(theirs)>>::value, \
                #theirs " is declared otherwise by its vendor");
#define EXPECT_NUMBER(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs);

// The files in `runtime/cpu/onednn/kinds` use these two macros: see
// `runtime/cpu/onednn/kind_function.h`.
#ifdef HAS_ONEDNN
#define TVM_INTEROP_SAME_FUNCTION(signature, theirs) \
  EXPECT_SAME(std::add_pointer_t<signature>, theirs)
#define TVM_INTEROP_SAME_NUMBER(ours, theirs) EXPECT_NUMBER(ours, theirs)
#endif

#endif  // TESTS_CPP_VENDOR_HEADERS_H_

// Scalar intrinsics. The approximate ones (__expf and kin) are the exact functions: tolerances leave room for both.
#pragma once
#define __expf expf // macros, since glibc declares some of these names
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __sincosf sincosf
#define __powf powf

template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldca(const T* p) { return *p; }
template <class T> static inline T __ldlu(const T* p) { return *p; }
template <class T> static inline T __ldcv(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
template <class T> static inline void __stcg(T* p, T v) { *p = v; }
template <class T> static inline void __stwb(T* p, T v) { *p = v; }
template <class T> static inline void __stwt(T* p, T v) { *p = v; }

static inline float __fdividef(float a, float b) { return a / b; }
static inline float fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; } // NaN gives 0

namespace emu {
template <class I> static inline I to_integer(double x) { // saturating, NaN gives 0, as cvt does
  if (x != x) return 0;
  constexpr I low = I(1) << (sizeof(I) * 8 - 1), floor = std::is_signed<I>::value ? low : I(0), ceil = I(~floor);
  if (x <= double(floor)) return floor;
  if (x >= double(ceil)) return ceil;
  return I(x);
}
} // namespace emu
static inline int __float2int_rn(float x) { return emu::to_integer<int>(nearbyint(x)); }
static inline int __float2int_rz(float x) { return emu::to_integer<int>(trunc(x)); }
static inline int __float2int_rd(float x) { return emu::to_integer<int>(floor(x)); }
static inline int __float2int_ru(float x) { return emu::to_integer<int>(ceil(x)); }
static inline unsigned __float2uint_rn(float x) { return emu::to_integer<unsigned>(nearbyint(x)); }
static inline unsigned __float2uint_rz(float x) { return emu::to_integer<unsigned>(trunc(x)); }
static inline unsigned __float2uint_rd(float x) { return emu::to_integer<unsigned>(floor(x)); }
static inline unsigned __float2uint_ru(float x) { return emu::to_integer<unsigned>(ceil(x)); }
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline float __ll2float_rn(long long x) { return float(x); }
static inline float __double2float_rn(double x) { return float(x); }

static inline unsigned __float_as_uint(float f) { return emu::bits<unsigned>(f); }
static inline int __float_as_int(float f) { return emu::bits<int>(f); }
static inline float __uint_as_float(unsigned u) { return emu::bits<float>(u); }
static inline float __int_as_float(int u) { return emu::bits<float>(u); }
static inline long long __double_as_longlong(double d) { return emu::bits<long long>(d); }
static inline double __longlong_as_double(long long d) { return emu::bits<double>(d); }

static inline int __popc(unsigned u) { return __builtin_popcount(u); }
static inline int __popcll(unsigned long long u) { return __builtin_popcountll(u); }
static inline int __clz(unsigned u) { return u ? __builtin_clz(u) : 32; }
static inline int __clzll(unsigned long long u) { return u ? __builtin_clzll(u) : 64; }
static inline int __ffs(unsigned u) { return __builtin_ffs(int(u)); }
static inline int __ffsll(unsigned long long u) { return __builtin_ffsll((long long)u); }
static inline unsigned __brev(unsigned u) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (u >> i & 1) << (31 - i);
  return r;
}
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) { return s & 31 ? hi << (s & 31) | lo >> (32 - (s & 31)) : hi; }
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { return s & 31 ? hi << (32 - (s & 31)) | lo >> (s & 31) : lo; }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long pool = (unsigned long long)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 15, byte = unsigned(pool >> (8 * (s & 7))) & 255;
    r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i); // bit 3 replicates the sign
  }
  return r;
}
namespace emu {
template <class A, class B> static inline int dot4(unsigned a, unsigned b, int c) {
  for (int i = 0; i < 4; ++i) c = int(unsigned(c) + unsigned(int(A(a >> (8 * i))) * int(B(b >> (8 * i)))));
  return c;
}
} // namespace emu
static inline int __dp4a(int a, int b, int c) { return emu::dot4<signed char, signed char>(a, b, c); }
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return emu::dot4<unsigned char, unsigned char>(a, b, int(c)); }
static inline int __dp4a(char4 a, char4 b, int c) { return __dp4a(emu::bits<int>(a), emu::bits<int>(b), c); }
static inline size_t __cvta_generic_to_shared(const void* p) { return emu::shared_offset(p); }

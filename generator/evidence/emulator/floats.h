// half, bfloat16 and fp8 with the names and rounding of cuda_fp16.h, cuda_bf16.h and cuda_fp8.h.
// Every operation rounds once, to nearest even, from a double: products of two such numbers are exact there.
#pragma once
namespace emu {
struct Fp16 {
  static float decode(uint16_t b) { return float(bits<_Float16>(b)); }
  static uint16_t encode(double x) { return bits<uint16_t>(_Float16(x)); }
};
struct Bf16 {
  static float decode(uint16_t b) { return bits<float>(uint32_t(b) << 16); }
  static uint16_t encode(double x) {
    if (x != x) return 0x7fff;
    const float f = float(x); // round to odd first, so that the second rounding is the only one that counts
    uint32_t u = bits<uint32_t>(f);
    if (double(f) != x && !std::isinf(f)) {
      if (std::fabs(double(f)) > std::fabs(x)) --u;
      u |= 1;
    }
    return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
};

template <class Format> struct Float16 {
  uint16_t raw;
  Float16() = default;
  Float16(float f) : raw(Format::encode(f)) {}
  Float16(double f) : raw(Format::encode(f)) {}
  template <class I, std::enable_if_t<std::is_integral<I>::value, int> = 0> Float16(I i) : raw(Format::encode(double(i))) {}
  operator float() const { return Format::decode(raw); }
  static Float16 of(uint16_t raw) {
    Float16 h;
    h.raw = raw;
    return h;
  }
  double d() const { return double(Format::decode(raw)); }
  friend Float16 operator+(Float16 a, Float16 b) { return Float16(a.d() + b.d()); }
  friend Float16 operator-(Float16 a, Float16 b) { return Float16(a.d() - b.d()); }
  friend Float16 operator*(Float16 a, Float16 b) { return Float16(a.d() * b.d()); }
  friend Float16 operator/(Float16 a, Float16 b) { return Float16(a.d() / b.d()); }
  friend Float16 operator-(Float16 a) { return of(a.raw ^ 0x8000); }
  friend bool operator==(Float16 a, Float16 b) { return a.d() == b.d(); }
  friend bool operator!=(Float16 a, Float16 b) { return a.d() != b.d(); }
  friend bool operator<(Float16 a, Float16 b) { return a.d() < b.d(); }
  friend bool operator>(Float16 a, Float16 b) { return a.d() > b.d(); }
  friend bool operator<=(Float16 a, Float16 b) { return a.d() <= b.d(); }
  friend bool operator>=(Float16 a, Float16 b) { return a.d() >= b.d(); }
  Float16& operator+=(Float16 b) { return *this = *this + b; }
  Float16& operator-=(Float16 b) { return *this = *this - b; }
  Float16& operator*=(Float16 b) { return *this = *this * b; }
  Float16& operator/=(Float16 b) { return *this = *this / b; }
};
template <class F> struct alignas(4) Pair16 {
  F x, y;
  Pair16() = default;
  Pair16(F a, F b) : x(a), y(b) {}
  friend Pair16 operator+(Pair16 a, Pair16 b) { return {a.x + b.x, a.y + b.y}; }
  friend Pair16 operator-(Pair16 a, Pair16 b) { return {a.x - b.x, a.y - b.y}; }
  friend Pair16 operator*(Pair16 a, Pair16 b) { return {a.x * b.x, a.y * b.y}; }
  friend Pair16 operator/(Pair16 a, Pair16 b) { return {a.x / b.x, a.y / b.y}; }
  friend Pair16 operator-(Pair16 a) { return {-a.x, -a.y}; }
  Pair16& operator+=(Pair16 b) { return *this = *this + b; }
  Pair16& operator*=(Pair16 b) { return *this = *this * b; }
};
} // namespace emu
using __half = emu::Float16<emu::Fp16>;
using __half2 = emu::Pair16<__half>;
using __nv_bfloat16 = emu::Float16<emu::Bf16>;
using __nv_bfloat162 = emu::Pair16<__nv_bfloat16>;
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

// Arithmetic that both formats spell alike.
#define EMU_FLOAT16(F, F2)                                                                             \
  static inline F __hadd(F a, F b) { return a + b; }                                                   \
  static inline F __hsub(F a, F b) { return a - b; }                                                   \
  static inline F __hmul(F a, F b) { return a * b; }                                                   \
  static inline F __hdiv(F a, F b) { return a / b; }                                                   \
  static inline F __hneg(F a) { return -a; }                                                           \
  static inline F __habs(F a) { return F::of(a.raw & 0x7fff); }                                        \
  static inline F __hfma(F a, F b, F c) { return F(a.d() * b.d() + c.d()); }                           \
  static inline F __hmax(F a, F b) { return a.d() != a.d() ? b : b.d() > a.d() ? b : a; }              \
  static inline F __hmin(F a, F b) { return a.d() != a.d() ? b : b.d() < a.d() ? b : a; }              \
  static inline bool __heq(F a, F b) { return a == b; }                                                \
  static inline bool __hne(F a, F b) { return a != b; }                                                \
  static inline bool __hlt(F a, F b) { return a < b; }                                                 \
  static inline bool __hle(F a, F b) { return a <= b; }                                                \
  static inline bool __hgt(F a, F b) { return a > b; }                                                 \
  static inline bool __hge(F a, F b) { return a >= b; }                                                \
  static inline bool __hisnan(F a) { return a.d() != a.d(); }                                          \
  static inline F2 __hadd2(F2 a, F2 b) { return a + b; }                                               \
  static inline F2 __hsub2(F2 a, F2 b) { return a - b; }                                               \
  static inline F2 __hmul2(F2 a, F2 b) { return a * b; }                                               \
  static inline F2 __h2div(F2 a, F2 b) { return a / b; }                                               \
  static inline F2 __hneg2(F2 a) { return -a; }                                                        \
  static inline F2 __habs2(F2 a) { return {__habs(a.x), __habs(a.y)}; }                                \
  static inline F2 __hfma2(F2 a, F2 b, F2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  static inline F2 __hmax2(F2 a, F2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                \
  static inline F2 __hmin2(F2 a, F2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                \
  static inline float __low2float(F2 a) { return float(a.x); }                                         \
  static inline float __high2float(F2 a) { return float(a.y); }                                        \
  static inline F hexp(F a) { return F(exp(a.d())); }                                                  \
  static inline F hlog(F a) { return F(log(a.d())); }                                                  \
  static inline F hsqrt(F a) { return F(sqrt(a.d())); }                                                \
  static inline F hrsqrt(F a) { return F(1.0 / sqrt(a.d())); }                                         \
  static inline F hrcp(F a) { return F(1.0 / a.d()); }
EMU_FLOAT16(__half, __half2)
EMU_FLOAT16(__nv_bfloat16, __nv_bfloat162)

static inline float __half2float(__half h) { return float(h); }
static inline __half __float2half(float f) { return __half(f); }
static inline __half __float2half_rn(float f) { return __half(f); }
static inline __half __double2half(double f) { return __half(f); }
static inline __half __int2half_rn(int i) { return __half(i); }
static inline __half __uint2half_rn(unsigned i) { return __half(double(i)); }
static inline __half __short2half_rn(short i) { return __half(int(i)); }
static inline __half __ushort2half_rn(unsigned short i) { return __half(int(i)); }
static inline int __half2int_rn(__half h) { return emu::to_integer<int>(nearbyint(h.d())); }
static inline int __half2int_rz(__half h) { return emu::to_integer<int>(trunc(h.d())); }
static inline unsigned short __half_as_ushort(__half h) { return h.raw; }
static inline short __half_as_short(__half h) { return short(h.raw); }
static inline __half __ushort_as_half(unsigned short r) { return __half::of(r); }
static inline __half __short_as_half(short r) { return __half::of(uint16_t(r)); }
static inline float2 __half22float2(__half2 h) { return {float(h.x), float(h.y)}; }
static inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
static inline __half2 __float22half2_rn(float2 f) { return {__half(f.x), __half(f.y)}; }
static inline __half2 __float2half2_rn(float f) { return {__half(f), __half(f)}; }
static inline __half __low2half(__half2 a) { return a.x; }
static inline __half __high2half(__half2 a) { return a.y; }
static inline __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
static inline __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
static inline __half2 __lowhigh2highlow(__half2 a) { return {a.y, a.x}; }
static inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
static inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
static inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
static inline __half2 __half2half2(__half a) { return {a, a}; }
static inline __half2 make_half2(__half a, __half b) { return {a, b}; }

static inline float __bfloat162float(__nv_bfloat16 h) { return float(h); }
static inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static inline float2 __bfloat1622float2(__nv_bfloat162 h) { return {float(h.x), float(h.y)}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 f) { return {__nv_bfloat16(f.x), __nv_bfloat16(f.y)}; }
static inline __nv_bfloat162 __float2bfloat162_rn(float f) { return {__nv_bfloat16(f), __nv_bfloat16(f)}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.raw; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short r) { return __nv_bfloat16::of(r); }

// ---- fp8 ---------------------------------------------------------------------------------------
struct __half_raw {
  unsigned short x;
  operator __half() const { return __half::of(x); }
};
struct __half2_raw {
  unsigned short x, y;
  operator __half2() const { return {__half::of(x), __half::of(y)}; }
};
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned int;

namespace emu {
struct E4M3 { // no infinity, one NaN, greatest 448
  static constexpr int mantissa = 3, bias = 7;
  static constexpr uint8_t greatest = 0x7e, overflow = 0x7f;
};
struct E5M2 {
  static constexpr int mantissa = 2, bias = 15;
  static constexpr uint8_t greatest = 0x7b, overflow = 0x7c;
};
template <class Format> static inline float fp8_decode(uint8_t b) {
  const int e = (b & 0x7f) >> Format::mantissa, m = b & ((1 << Format::mantissa) - 1);
  float v = ldexpf(float(e ? m + (1 << Format::mantissa) : m), (e ? e : 1) - Format::bias - Format::mantissa);
  if ((b & 0x7f) > Format::greatest) v = Format::overflow == 0x7c && (b & 0x7f) == 0x7c ? HUGE_VALF : NAN;
  return b & 0x80 ? -v : v;
}
template <class Format> static inline uint8_t fp8_encode(double x, bool saturate = true) {
  if (x != x) return 0x7f;
  const double a = fabs(x);
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isinf(x)) return sign | (saturate ? Format::greatest : Format::overflow);
  const int e = a == 0 ? 1 - Format::bias : std::max(ilogb(a), 1 - Format::bias);
  const double steps = nearbyint(ldexp(a, Format::mantissa - e)); // whole steps of the last place, to nearest even
  const double code = steps < (1 << Format::mantissa) ? steps : steps + double(e + Format::bias - 1) * (1 << Format::mantissa);
  if (code > Format::greatest) return sign | (saturate ? Format::greatest : Format::overflow);
  return sign | uint8_t(code);
}
static inline float fp8_decode(uint8_t b, __nv_fp8_interpretation_t f) { return f == __NV_E4M3 ? fp8_decode<E4M3>(b) : fp8_decode<E5M2>(b); }
static inline uint8_t fp8_encode(double x, __nv_saturation_t s, __nv_fp8_interpretation_t f) {
  return f == __NV_E4M3 ? fp8_encode<E4M3>(x, s == __NV_SATFINITE) : fp8_encode<E5M2>(x, s == __NV_SATFINITE);
}
template <class Format> struct Fp8 {
  __nv_fp8_storage_t __x;
  Fp8() = default;
  explicit Fp8(float f) : __x(fp8_encode<Format>(f)) {}
  explicit Fp8(double f) : __x(fp8_encode<Format>(f)) {}
  explicit Fp8(__half f) : __x(fp8_encode<Format>(f.d())) {}
  explicit operator float() const { return fp8_decode<Format>(__x); }
  explicit operator __half() const { return __half(fp8_decode<Format>(__x)); }
};
template <class Format> struct alignas(2) Fp8x2 {
  __nv_fp8x2_storage_t __x;
  Fp8x2() = default;
  explicit Fp8x2(float2 f) : __x(__nv_fp8x2_storage_t(fp8_encode<Format>(f.x) | fp8_encode<Format>(f.y) << 8)) {}
  explicit operator float2() const { return {fp8_decode<Format>(uint8_t(__x)), fp8_decode<Format>(uint8_t(__x >> 8))}; }
  explicit operator __half2() const { return {__half(fp8_decode<Format>(uint8_t(__x))), __half(fp8_decode<Format>(uint8_t(__x >> 8)))}; }
};
template <class Format> struct alignas(4) Fp8x4 {
  __nv_fp8x4_storage_t __x;
  Fp8x4() = default;
  explicit Fp8x4(float4 f)
      : __x(fp8_encode<Format>(f.x) | fp8_encode<Format>(f.y) << 8 | fp8_encode<Format>(f.z) << 16 | unsigned(fp8_encode<Format>(f.w)) << 24) {}
  explicit operator float4() const {
    return {fp8_decode<Format>(uint8_t(__x)), fp8_decode<Format>(uint8_t(__x >> 8)), fp8_decode<Format>(uint8_t(__x >> 16)),
            fp8_decode<Format>(uint8_t(__x >> 24))};
  }
};
} // namespace emu
using __nv_fp8_e4m3 = emu::Fp8<emu::E4M3>;
using __nv_fp8_e5m2 = emu::Fp8<emu::E5M2>;
using __nv_fp8x2_e4m3 = emu::Fp8x2<emu::E4M3>;
using __nv_fp8x4_e4m3 = emu::Fp8x4<emu::E4M3>;
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t s, __nv_fp8_interpretation_t f) { return emu::fp8_encode(x, s, f); }
static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t s, __nv_fp8_interpretation_t f) {
  return __nv_fp8x2_storage_t(emu::fp8_encode(x.x, s, f) | emu::fp8_encode(x.y, s, f) << 8);
}
static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t f) { return {__half(emu::fp8_decode(x, f)).raw}; }
static inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t f) {
  return {__half(emu::fp8_decode(uint8_t(x), f)).raw, __half(emu::fp8_decode(uint8_t(x >> 8), f)).raw};
}

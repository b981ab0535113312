// Qualifiers, built-in variables and vector types of CUDA C++.
#pragma once
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __constant__ static
#define __shared__ static __attribute__((section("ks_shared")))
#define __launch_bounds__(...)
#define __cluster_dims__(...) // ptx.py hands the size to the launch
#define __maxnreg__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition)

extern uint3 blockIdx;
extern dim3 blockDim, gridDim;
#define threadIdx (emu::self->tid)
constexpr int warpSize = 32;

using uchar = unsigned char;
using ushort = unsigned short;
#define EMU_VEC(T, name)                                                                               \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                   \
  struct name##3 { T x, y, z; };                                                                       \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                   \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                    \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                            \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VEC(float, float) EMU_VEC(int, int) EMU_VEC(short, short) EMU_VEC(signed char, char) EMU_VEC(double, double)
EMU_VEC(unsigned char, uchar) EMU_VEC(unsigned short, ushort) EMU_VEC(long long, longlong) EMU_VEC(unsigned long long, ulonglong)
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

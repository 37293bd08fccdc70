// Vectors of floats, and the one loop that multiplies matrices.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#define INLINE __attribute__((always_inline))

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kTall = 8;
#elif defined(__AVX__)
constexpr int kLanes = 8, kTall = 4;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kTall = 8;
#else
constexpr int kLanes = 4, kTall = 4;
#endif
constexpr int kWide = 3;                    // vectors of rows in a panel
constexpr int64_t kPanel = kWide * kLanes;  // rows in a panel
constexpr int64_t kKeys = 64;               // keys in a tile
constexpr int64_t kTerms = 64;              // of head dims that are added up without a stop

using Vector = float __attribute__((vector_size(kLanes * 4)));
using Integers = int32_t __attribute__((vector_size(kLanes * 4)));
using Doubles = double __attribute__((vector_size(kLanes * 8)));
using DoublesAnywhere =
    double __attribute__((vector_size(kLanes * 8), aligned(8), may_alias));
using Anywhere = float __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
using Four = float __attribute__((vector_size(16)));
using FourAnywhere = float __attribute__((vector_size(16), aligned(4), may_alias));

inline Vector load(const float* p) { return *reinterpret_cast<const Anywhere*>(p); }
inline void store(float* p, Vector x) { *reinterpret_cast<Anywhere*>(p) = x; }
// Adds x to sums of 64 bits, which lose nothing however many they are of.
inline void add_wide(double* sums, Vector x) {
  DoublesAnywhere* place = reinterpret_cast<DoublesAnywhere*>(sums);
  *place = *place + __builtin_convertvector(x, Doubles);
}
// The same numbers in 32 bits, in their place.
inline float* narrow(double* sums, int64_t count) {
  float* out = reinterpret_cast<float*>(sums);
  for (int64_t at = 0; at < count; at += kLanes) {
    const Doubles x = *reinterpret_cast<const DoublesAnywhere*>(sums + at);
    store(out + at, __builtin_convertvector(x, Vector));
  }
  return out;
}
inline Vector keep(Integers where, Vector x) {
  return reinterpret_cast<Vector>(where & reinterpret_cast<Integers>(x));
}

template <int N>
using Number = std::integral_constant<int, N>;

// The one product: sums[m][n] = sum over t of a[m * a_m + t * a_t] * b[t * b_t + n * kLanes].
template <int M, int N, class Finish>
INLINE inline void multiply(int64_t terms, const float* __restrict a, int64_t a_m, int64_t a_t,
                            const float* __restrict b, int64_t b_t, Finish finish) {
  Vector sums[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[m][n] = Vector{};
  for (int64_t t = 0; t < terms; ++t) {
    Vector row[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) row[n] = load(b + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[m][n] += a[m * a_m] * row[n];
    a += a_t;
    b += b_t;
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) finish(m, n, sums[m][n]);
}

// body(M, at) for pieces of a range, the tallest first; M is known when this is compiled.
template <class Body>
INLINE inline void in_steps(int64_t count, Body body) {
  int64_t at = 0;
  for (; at + kTall <= count; at += kTall) body(Number<kTall>(), at);
  if constexpr (kTall > 4)
    if (count - at >= 4) body(Number<4>(), at), at += 4;
  if (count - at >= 2) body(Number<2>(), at), at += 2;
  if (count - at >= 1) body(Number<1>(), at);
}

// body(N) for the number of vectors that a panel of so many rows has.
template <class Body>
INLINE inline void by_width(int64_t rows, Body body) {
  static_assert(kWide == 3);
  const int64_t vectors = (rows + kLanes - 1) / kLanes;
  if (vectors == 3) body(Number<3>());
  else if (vectors == 2) body(Number<2>());
  else body(Number<1>());
}

// out[keys][panel] = k b, of k [keys][terms] as it lies and b [terms][panel]. Long sums are made of
// shorter ones, which err less; of no terms they are zeros.
template <int N>
void multiply_keys(int64_t keys, int64_t terms, const float* k, int64_t k_row, const float* b,
                   float* out) {
  int64_t t = 0;
  do {
    in_steps(keys, [&](auto m, int64_t at) INLINE {
      constexpr int M = m;
      const int64_t count = t + kTerms < terms ? kTerms : terms - t;
      multiply<M, N>(count, k + at * k_row + t, k_row, 1, b + t * kPanel, kPanel,
                     [&](int i, int n, Vector x) INLINE {
                       float* p = out + (at + i) * kPanel + n * kLanes;
                       store(p, t == 0 ? x : load(p) + x);
                     });
    });
  } while ((t += kTerms) < terms);
}

// total[columns][panel] += a' b, of a [terms][columns] as it lies and b [terms][panel].
template <int N>
void add_turned(float* total, int64_t columns, const float* a, int64_t a_row, const float* b,
                int64_t terms) {
  in_steps(columns, [&](auto m, int64_t at) INLINE {
    constexpr int M = m;
    float* out = total + at * kPanel;
    multiply<M, N>(terms, a + at, 1, a_row, b, kPanel, [&](int i, int n, Vector x) INLINE {
      float* p = out + i * kPanel + n * kLanes;
      store(p, load(p) + x);
    });
  });
}

// total[keys][pitch] += a b, of a [keys][panel] and b [rows][pitch]: N vectors of each row.
template <int N>
void add_columns(float* total, int64_t keys, const float* a, const float* b, int64_t rows,
                 int64_t pitch) {
  in_steps(keys, [&](auto m, int64_t at) INLINE {
    constexpr int M = m;
    float* out = total + at * pitch;
    multiply<M, N>(rows, a + at * kPanel, kPanel, 1, b, pitch, [&](int i, int n, Vector x) INLINE {
      float* p = out + i * pitch + n * kLanes;
      store(p, load(p) + x);
    });
  });
}

// The same of all columns.
void add_straight(float* total, int64_t keys, const float* a, const float* b, int64_t rows,
                  int64_t pitch) {
  for (int64_t left = pitch / kLanes, at = 0; left > 0;) {
    if (left == 3 || left > 4) {
      add_columns<3>(total + at, keys, a, b + at, rows, pitch);
      left -= 3, at += 3 * kLanes;
    } else if (left >= 2) {
      add_columns<2>(total + at, keys, a, b + at, rows, pitch);
      left -= 2, at += 2 * kLanes;
    } else {
      add_columns<1>(total + at, keys, a, b + at, rows, pitch);
      left -= 1;
    }
  }
}

// b[j][i] = a[i][j] of four rows and four columns
inline void turn_four(const float* a, int64_t a_row, float* b, int64_t b_row) {
  Four x[4], y[4];
  for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const FourAnywhere*>(a + i * a_row);
  const Four low = {x[0][0], x[1][0], x[0][1], x[1][1]},
             low2 = {x[2][0], x[3][0], x[2][1], x[3][1]};
  const Four high = {x[0][2], x[1][2], x[0][3], x[1][3]},
             high2 = {x[2][2], x[3][2], x[2][3], x[3][3]};
  y[0] = Four{low[0], low[1], low2[0], low2[1]};
  y[1] = Four{low[2], low[3], low2[2], low2[3]};
  y[2] = Four{high[0], high[1], high2[0], high2[1]};
  y[3] = Four{high[2], high[3], high2[2], high2[3]};
  for (int i = 0; i < 4; ++i) *reinterpret_cast<FourAnywhere*>(b + i * b_row) = y[i];
}

// b[j][i] = a[i][j]
void turn(const float* a, int64_t a_row, int64_t rows, int64_t columns, float* b, int64_t b_row) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) turn_four(a + i * a_row + j, a_row, b + j * b_row + i, b_row);
    for (; j < columns; ++j)
      for (int64_t r = i; r < i + 4; ++r) b[j * b_row + r] = a[r * a_row + j];
  }
  for (; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) b[j * b_row + i] = a[i * a_row + j];
}

// Lanes of a panel beyond its rows, whose results nobody reads: zero, not whatever lay there.
void clear_lanes(float* panel, int64_t rows, int64_t columns) {
  const int64_t end = (rows + kLanes - 1) / kLanes * kLanes;
  if (rows == end) return;
  for (int64_t j = 0; j < columns; ++j) std::memset(panel + j * kPanel + rows, 0, (end - rows) * 4);
}

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Memory of a thread, kept from call to call.
struct Scratch {
  static constexpr int64_t kMostParts = 16;
  float* data = nullptr;
  int64_t size = 0, used = 0;
  ~Scratch() { std::free(data); }
  void reserve(int64_t numbers) {
    used = 0;
    numbers += kMostParts * 16;  // what `take` rounds up
    if (numbers <= size) return;
    std::free(data);
    size = round_up(numbers, 1024);
    data = static_cast<float*>(std::aligned_alloc(64, size * 4));
    if (!data) {
      size = 0;
      throw std::bad_alloc();
    }
  }
  float* take(int64_t numbers) {
    float* result = data + used;
    used += round_up(numbers, 16);
    return result;
  }
  double* take_wide(int64_t numbers) { return reinterpret_cast<double*>(take(2 * numbers)); }
};
thread_local Scratch scratch;

}  // namespace

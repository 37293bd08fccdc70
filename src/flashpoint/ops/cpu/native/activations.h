// Activations on vectors of scores.
#pragma once

#include "vectors.h"

namespace {

// h(s), and h'(s) times dw. Comparisons are such that NaN stays NaN, and that an infinite dw where
// h is flat leaves nothing behind.
template <int Power>
struct Relu {
  static Vector weigh(Vector s) {
    Vector r = keep(~(s <= 0), s);
    if constexpr (Power == 1) return r;
    if constexpr (Power == 2) return r * r;
    if constexpr (Power == 3) return r * (r * r);
    if constexpr (Power == 4) return (r * r) * (r * r);
  }
  static void differentiate(Vector s, Vector dw, Vector& w, Vector& ds) {
    Integers on = ~(s <= 0);
    Vector r = keep(on, s);
    dw = keep(on, dw);
    if constexpr (Power == 1) w = r, ds = dw;
    if constexpr (Power == 2) w = r * r, ds = 2 * (dw * r);
    if constexpr (Power == 3) w = r * (r * r), ds = 3 * (dw * (r * r));
    if constexpr (Power == 4) w = (r * r) * (r * r), ds = 4 * (dw * r * (r * r));
  }
};

struct Relu6 {
  static Vector weigh(Vector s) {
    const Vector six = Vector{} + 6;
    const Vector r = keep(~(s <= 0), s);
    return r > 6 ? six : r;
  }
  static void differentiate(Vector s, Vector dw, Vector& w, Vector& ds) {
    w = weigh(s);
    ds = keep(~((s <= 0) | (s >= 6)), dw);
  }
};

struct Identity {
  static Vector weigh(Vector s) { return s; }
  static void differentiate(Vector s, Vector dw, Vector& w, Vector& ds) { w = s, ds = dw; }
};

// c[0] x^n + c[1] x^(n-1) + ... + c[n]
template <int N>
INLINE inline Vector polynomial(Vector x, const float (&c)[N]) {
  Vector sum = Vector{} + c[0];
#pragma GCC unroll 16
  for (int i = 1; i < N; ++i) sum = sum * x + c[i];
  return sum;
}

// 2 ** n of whole numbers from -126 to 127
inline Vector power_of_two(Integers n) { return reinterpret_cast<Vector>((n + 127) << 23); }

// e ** x = 2 ** n e ** r with |r| <= log(2) / 2, to 4e-9 of itself but for rounding. Infinite from
// 88.8 on, zero from -104 on, and NaN of NaN. docs/log.md says how polynomials were found.
inline Vector exponential(Vector x) {
  constexpr float kWhole = 12582912;  // 1.5 * 2 ** 23: what is added to it loses its fraction
  const Vector low = Vector{} - 104, high = Vector{} + 89;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vector shifted = x * 1.44269504f + kWhole, n = shifted - kWhole;
  const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // log(2) in two parts
  const Vector p =
      polynomial(r, {0.0013814613f, 0.00836871f, 0.04166839f, 0.16666521f, 0.49999994f});
  const Integers whole =
      reinterpret_cast<Integers>(shifted) - reinterpret_cast<Integers>(Vector{} + kWhole);
  const Integers half = whole >> 1;  // in two factors: 2 ** n itself may be out of range
  return (p * (r * r) + r + 1) * power_of_two(half) * power_of_two(whole - half);
}

inline Vector magnitude(Vector x) {
  return reinterpret_cast<Vector>(reinterpret_cast<Integers>(x) & 0x7fffffff);
}

struct Exp {
  static Vector weigh(Vector s) { return exponential(s); }
  static void differentiate(Vector s, Vector dw, Vector& w, Vector& ds) {
    w = exponential(s);
    ds = dw * w;
  }
};

// Of z = e ** -|s|, which never overflows: sigma(s), sigma(-s) and their product.
struct Sigmoid {
  Vector upper, lower, slope;
  explicit Sigmoid(Vector s) : Sigmoid(s, exponential(-magnitude(s))) {}
  Sigmoid(Vector s, Vector z) {
    const Vector large = 1 / (1 + z), small = z * large;
    upper = s >= 0 ? large : small;
    lower = s >= 0 ? small : large;
    slope = large * small;
  }
  static Vector weigh(Vector s) { return Sigmoid(s).upper; }
  static void differentiate(Vector s, Vector dw, Vector& w, Vector& ds) {
    const Sigmoid sigma(s);
    w = sigma.upper, ds = dw * sigma.slope;
  }
};

struct Silu {
  static Vector weigh(Vector s) { return s * Sigmoid(s).upper; }
  static void differentiate(Vector s, Vector dw, Vector& w, Vector& ds) {
    const Sigmoid sigma(s);
    w = s * sigma.upper;
    ds = dw * (sigma.upper * (1 + s * sigma.lower));
  }
};

// max(s, 0) + log(1 + z); the logarithm is 2 atanh(z / (2 + z)), to 8e-9 of itself.
struct Softplus {
  static Vector weigh(Vector s) { return weigh(s, exponential(-magnitude(s))); }
  static Vector weigh(Vector s, Vector z) {
    const Vector x = z / (2 + z), u = x * x;
    const Vector p = polynomial(u, {0.14095771f, 0.13978833f, 0.20012558f, 0.33333156f, 1.0f});
    return keep(s > 0, s) + 2 * x * p;
  }
  static void differentiate(Vector s, Vector dw, Vector& w, Vector& ds) {
    const Vector z = exponential(-magnitude(s));
    w = weigh(s, z), ds = dw * Sigmoid(s, z).upper;
  }
};

// s Phi(s). Phi(-|s|) is e ** (-s s / 2) times a function of t = 1 / (1 + c |s|), to 5e-8 of 1.
struct Gelu {
  Vector phi, density;
  explicit Gelu(Vector s) {
    const Vector e = exponential(s * s * -0.5f), t = 1 / (1 + 0.33234019f * magnitude(s));
    const Vector p =
        polynomial(t, {-0.020538598f, 0.08235681f, -0.10073946f, 0.010147096f, 0.0085985651f,
                       0.047978073f, 0.089138098f, 0.11788832f, 0.13258651f, 0.13258454f});
    const Vector tail = t * p * e;
    phi = s >= 0 ? 1 - tail : tail;
    density = 0.39894228f * e;
  }
  static Vector weigh(Vector s) { return s * Gelu(s).phi; }
  static void differentiate(Vector s, Vector dw, Vector& w, Vector& ds) {
    const Gelu gelu(s);
    w = s * gelu.phi;
    ds = dw * (gelu.phi + s * gelu.density);
  }
};

}  // namespace

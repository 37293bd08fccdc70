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

}  // namespace

// Forward: S' = K Q', O' += V' h(S').
#pragma once

#include "scores.h"

namespace {

// Scores in w[keys][panel] become weights, whose sums are added to `sums`, if there are any.
template <class H, int N, bool HasSums>
void weigh(const View& view, const Extras& extras, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
           float* w, double* sums) {
  const Call& c = view.call;
  const float scale = c.scale, bias = c.bias_number;
  const bool is_cut = view.cuts(i0, i1, j0, j1), has_bias = c.bias.data;
  Vector part[N] = {};
  for (int64_t j = 0; j < j1 - j0; ++j)
#pragma GCC unroll 3
    for (int n = 0; n < N; ++n) {
      const int64_t at = j * kPanel + n * kLanes;
      Vector s = load(w + at) * scale + bias;
      if (has_bias) s += load(extras.bias + at);
      Vector x = H::weigh(s);
      if (__builtin_expect(is_cut, 0)) x = keep(view.sees(i0, n, j0 + j), x);
      x = masked(c, extras.mask + at, x);
      if constexpr (HasSums) part[n] += x;
      store(w + at, x);
    }
  if constexpr (HasSums)
    for (int n = 0; n < N; ++n) add_wide(sums + n * kLanes, part[n]);
}

// Each column of a panel times its number.
void scale_columns(float* panel, const float* numbers, int64_t count, int64_t columns) {
  const int64_t vectors = (columns + kLanes - 1) / kLanes;
  for (int64_t d = 0; d < count; ++d)
    for (int64_t n = 0; n < vectors; ++n) {
      float* x = panel + d * kPanel + n * kLanes;
      store(x, load(x) * load(numbers + n * kLanes));
    }
}

// Forward of rows [i0, i1) of a head.
template <class H>
void attend(const Call& c, int64_t piece) {
  const int64_t blocks = (c.queries + c.block - 1) / c.block;
  const int64_t i0 = piece % blocks * c.block, h = piece / blocks % c.q_heads,
                b = piece / blocks / c.q_heads;
  const int64_t i1 = i0 + c.block < c.queries ? i0 + c.block : c.queries;
  const int64_t hk = h / (c.q_heads / c.kv_heads);
  const int64_t panels = (i1 - i0 + kPanel - 1) / kPanel;
  const int64_t q_size = c.dim * kPanel, o_size = c.value_dim * kPanel;
  scratch.reserve(panels * (q_size + o_size + 2 * kPanel) + kKeys * kPanel + Extras::kRoom);
  float* q = scratch.take(panels * q_size);
  float* o = scratch.take(panels * o_size);
  double* sums = scratch.take_wide(panels * kPanel);
  float* w = scratch.take(kKeys * kPanel);
  Extras extras(scratch.take(Extras::kRoom));
  const View view(c, b, h);
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t from = i0 + p * kPanel, rows = from + kPanel < i1 ? kPanel : i1 - from;
    turn(at(c.q, b, h, from), c.q.row, rows, c.dim, q + p * q_size, kPanel);
    clear_lanes(q + p * q_size, rows, c.dim);
  }
  std::memset(o, 0, panels * o_size * 4);
  if (c.sums.data) std::memset(sums, 0, panels * kPanel * 8);
  const int64_t end = view.end(i1);
  // Tiles begin at multiples of their size, so that no bit depends on how rows are shared out.
  for (int64_t j0 = view.start(i0) / kKeys * kKeys; j0 < end; j0 += kKeys) {
    const int64_t j1 = j0 + kKeys < end ? j0 + kKeys : end;
    const float *k = at(c.k, b, hk, j0), *v = at(c.v, b, hk, j0);
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t from = i0 + p * kPanel, to = from + kPanel < i1 ? from + kPanel : i1;
      if (view.start(from) >= j1 || view.end(to) <= j0) continue;
      if (!extras.fetch(view, from, to, j0, j1)) continue;
      by_width(to - from, [&](auto n) INLINE {
        constexpr int N = n;
        multiply_keys<N>(j1 - j0, c.dim, k, c.k.row, q + p * q_size, w);
        if (c.sums.data) weigh<H, N, true>(view, extras, from, to, j0, j1, w, sums + p * kPanel);
        else weigh<H, N, false>(view, extras, from, to, j0, j1, w, nullptr);
        add_turned<N>(o + p * o_size, c.value_dim, v, c.v.row, w, j1 - j0);
      });
    }
  }
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t from = i0 + p * kPanel, rows = from + kPanel < i1 ? kPanel : i1 - from;
    float *factors = w, *lifts = w + kPanel, *panel = o + p * o_size;  // w is not needed again
    bool has_tiny = false;
    for (int64_t i = 0; i < rows; ++i) {
      const RowScale by = view.scale_of(from + i, c.sums.data ? sums[p * kPanel + i] : 0);
      lifts[i] = by.lift, factors[i] = by.factor;
      has_tiny |= by.lift != 1;
    }
    if (has_tiny) scale_columns(panel, lifts, c.value_dim, rows);
    scale_columns(panel, factors, c.value_dim, rows);
    turn(panel, kPanel, c.value_dim, rows, at(c.o, b, h, from), c.o.row);
  }
}

}  // namespace

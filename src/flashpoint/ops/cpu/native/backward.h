// Backward: S' = K Q', dW' = V G', dQ' += K' dS', dV += h(S') G, dK += dS' Q.
#pragma once

#include "call.h"

namespace {

constexpr int64_t kPacked = 1 << 18;  // numbers of q or do that are kept packed at a time

// w and ds, [keys][panel] both.
template <class H, int N>
void differentiate(const View& view, const float* q, const float* g, const float* offset,
                   const float* k, const float* v, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
                   float* w, float* ds) {
  const Call& c = view.call;
  const float scale = c.scale, bias = c.bias;
  const bool is_cut = view.cuts(i0, i1, j0, j1);
  multiply_keys<N>(j1 - j0, c.value_dim, v, c.v.row, g, [&](int64_t j, int n, Vector x) INLINE {
    store(ds + j * kPanel + n * kLanes, x);
  });
  multiply_keys<N>(j1 - j0, c.dim, k, c.k.row, q, [&](int64_t j, int n, Vector s) INLINE {
    float* place = ds + j * kPanel + n * kLanes;
    Vector dw = load(place), x, dx;
    if (offset) dw += load(offset + n * kLanes);
    H::differentiate(s * scale + bias, dw, x, dx);
    if (__builtin_expect(is_cut, 0)) {
      const Integers seen = view.sees(i0, n, j0 + j);
      x = keep(seen, x), dx = keep(seen, dx);
    }
    store(w + j * kPanel + n * kLanes, x);
    store(place, dx);
  });
}

// out = x, or out += x, times a factor; `pitch` numbers lie between rows of x.
void put(float* out, int64_t out_row, const float* x, int64_t pitch, int64_t rows, int64_t columns,
         float factor, bool is_first) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < columns; ++d) {
      const float y = x[i * pitch + d] * factor;
      out[i * out_row + d] = is_first ? y : out[i * out_row + d] + y;
    }
}

// Memory for a share: queries packed as both kinds of products want them, and what they make.
struct Packed {
  int64_t panels, span;  // of queries at a time
  int64_t pitch, value_pitch, q_size, g_size;
  float *q, *dq, *g;       // turned, a panel after the other
  float *q_rows, *g_rows;  // as they lie, with zeros behind each row
  float *offsets, *w, *ds, *dk, *dv;

  explicit Packed(const Call& c)
      : pitch(round_up(c.dim, kLanes)),
        value_pitch(round_up(c.value_dim, kLanes)),
        q_size(c.dim * kPanel),
        g_size(c.value_dim * kPanel) {
    const int64_t most = kPacked / (c.dim > c.value_dim ? c.dim : c.value_dim) / kPanel;
    const int64_t all = (c.queries + kPanel - 1) / kPanel;
    panels = most < 1 ? 1 : most < all ? most : all;
    span = panels * kPanel;
    scratch.reserve(panels * (2 * q_size + g_size + kPanel * (1 + pitch + value_pitch)) +
                    kKeys * (2 * kPanel + pitch + value_pitch));
    q = scratch.take(panels * q_size);
    dq = scratch.take(panels * q_size);
    g = scratch.take(panels * g_size);
    q_rows = scratch.take(span * pitch);
    g_rows = scratch.take(span * value_pitch);
    offsets = scratch.take(span);
    w = scratch.take(kKeys * kPanel);
    ds = scratch.take(kKeys * kPanel);
    dk = scratch.take(kKeys * pitch);
    dv = scratch.take(kKeys * value_pitch);
  }

  // Queries [s0, s1) of a head, and g, which is do times their factors; dq starts at zero.
  void fill(const View& view, int64_t b, int64_t h, int64_t s0, int64_t s1) {
    const Call& c = view.call;
    for (int64_t i = s0; i < s1; ++i) {
      const float factor = c.factors.data ? *at(c.factors, b, h, i) : view.factor(i);
      const float *query = at(c.q, b, h, i), *slope = at(c.o, b, h, i);
      float *row = q_rows + (i - s0) * pitch, *g_row = g_rows + (i - s0) * value_pitch;
      std::memcpy(row, query, c.dim * 4);
      std::memset(row + c.dim, 0, (pitch - c.dim) * 4);
      for (int64_t d = 0; d < c.value_dim; ++d) g_row[d] = slope[d] * factor;
      std::memset(g_row + c.value_dim, 0, (value_pitch - c.value_dim) * 4);
      if (c.offsets.data) offsets[i - s0] = *at(c.offsets, b, h, i);
    }
    for (int64_t i0 = s0, p = 0; i0 < s1; i0 += kPanel, ++p) {
      const int64_t rows = i0 + kPanel < s1 ? kPanel : s1 - i0;
      turn(q_rows + p * kPanel * pitch, pitch, rows, c.dim, q + p * q_size, kPanel);
      turn(g_rows + p * kPanel * value_pitch, value_pitch, rows, c.value_dim, g + p * g_size,
           kPanel);
      clear_lanes(q + p * q_size, rows, c.dim);
      clear_lanes(g + p * g_size, rows, c.value_dim);
    }
    std::memset(dq, 0, panels * q_size * 4);
  }

  // dk and dv of keys [j0, j1) from queries [s0, s1), and their part of dq.
  template <class H>
  void meet(const View& view, const float* k, const float* v, int64_t s0, int64_t s1, int64_t j0,
            int64_t j1) {
    const Call& c = view.call;
    std::memset(dk, 0, kKeys * pitch * 4);
    std::memset(dv, 0, kKeys * value_pitch * 4);
    for (int64_t i0 = s0, p = 0; i0 < s1; i0 += kPanel, ++p) {
      const int64_t i1 = i0 + kPanel < s1 ? i0 + kPanel : s1;
      if (view.start(i0) >= j1 || view.end(i1) <= j0) continue;
      const float* offset = c.offsets.data ? offsets + p * kPanel : nullptr;
      by_width(i1 - i0, [&](auto n) INLINE {
        constexpr int N = n;
        differentiate<H, N>(view, q + p * q_size, g + p * g_size, offset, k, v, i0, i1, j0, j1, w,
                            ds);
        add_turned<N>(dq + p * q_size, c.dim, k, c.k.row, ds, j1 - j0);
      });
      add_straight(dv, j1 - j0, w, g_rows + p * kPanel * value_pitch, i1 - i0, value_pitch);
      add_straight(dk, j1 - j0, ds, q_rows + p * kPanel * pitch, i1 - i0, pitch);
    }
  }

  // dq of queries [s0, s1), turned back.
  void put_dq(const Call& c, int64_t s0, int64_t s1, float* out, int64_t out_row) {
    for (int64_t i0 = s0, p = 0; i0 < s1; i0 += kPanel, ++p) {
      const int64_t rows = i0 + kPanel < s1 ? kPanel : s1 - i0;
      for (int64_t x = 0; x < q_size; x += kLanes) {
        float* place = dq + p * q_size + x;
        store(place, load(place) * static_cast<float>(c.scale));
      }
      turn(dq + p * q_size, kPanel, c.dim, rows, out + (i0 - s0) * out_row, out_row);
    }
  }
};

// dq of the heads [h0, h1) of a sample: all shares of it, added up in their order.
void add_shares(const Call& c, int64_t b, int64_t h0, int64_t h1, int64_t shares) {
  const int64_t step = c.samples * c.q_heads * c.queries * c.dim;
  for (int64_t h = h0; h < h1; ++h)
    for (int64_t i = 0; i < c.queries; ++i) {
      float* out = at(c.dq, b, h, i);
      const float* part = c.parts + ((b * c.q_heads + h) * c.queries + i) * c.dim;
      for (int64_t d = 0; d < c.dim; ++d) {
        float total = 0;
        for (int64_t s = 0; s < shares; ++s) total += part[s * step + d];
        out[d] = total;
      }
    }
}

// Backward of a share of the keys of a key head.
template <class H>
void differentiate_share(const Call& c, int64_t piece) {
  const int64_t shares = (c.keys + c.block - 1) / c.block, share = piece % shares;
  const int64_t hk = piece / shares % c.kv_heads, b = piece / shares / c.kv_heads;
  const int64_t h0 = hk * (c.q_heads / c.kv_heads), h1 = h0 + c.q_heads / c.kv_heads;
  const View view(c, b);
  const int64_t first = share * c.block;
  const int64_t last = first + c.block < c.keys ? first + c.block : c.keys;
  const int64_t seen = last < view.existing ? last : view.existing;
  Packed packed(c);
  for (int64_t h = h0; h < h1; ++h)
    for (int64_t s0 = 0; s0 < c.queries; s0 += packed.span) {
      const int64_t s1 = s0 + packed.span < c.queries ? s0 + packed.span : c.queries;
      const bool is_first = h == h0 && s0 == 0;
      packed.fill(view, b, h, s0, s1);
      for (int64_t j0 = first; j0 < seen; j0 += kKeys) {
        const int64_t j1 = j0 + kKeys < seen ? j0 + kKeys : seen;
        packed.meet<H>(view, at(c.k, b, hk, j0), at(c.v, b, hk, j0), s0, s1, j0, j1);
        put(at(c.dk, b, hk, j0), c.dk.row, packed.dk, packed.pitch, j1 - j0, c.dim, c.scale,
            is_first);
        put(at(c.dv, b, hk, j0), c.dv.row, packed.dv, packed.value_pitch, j1 - j0, c.value_dim, 1,
            is_first);
      }
      const int64_t row = ((share * c.samples + b) * c.q_heads + h) * c.queries + s0;
      if (c.parts) packed.put_dq(c, s0, s1, c.parts + row * c.dim, c.dim);
      else packed.put_dq(c, s0, s1, at(c.dq, b, h, s0), c.dq.row);
    }
  for (int64_t j = seen > first ? seen : first; j < last; ++j) {
    std::memset(at(c.dk, b, hk, j), 0, c.dim * 4);
    std::memset(at(c.dv, b, hk, j), 0, c.value_dim * 4);
  }
  if (c.parts && c.finished[b * c.kv_heads + hk].fetch_add(1) + 1 == shares)
    add_shares(c, b, h0, h1, shares);  // by the last to finish
}

}  // namespace

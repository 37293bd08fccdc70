// Backward: S' = K Q', dW' = V G', dQ' += K' dS', dV += h(S') G, dK += dS' Q.
// Of a bias dS', of a mask dW' h(S'), added up where the tensor has one number for several scores.
#pragma once

#include "scores.h"

namespace {

constexpr int64_t kPacked = 1 << 18;  // numbers of q or do that are kept packed at a time

// Scores and gradients of weights, in w and ds [keys][panel], become weights and gradients of
// scores; with `OfMask` the latter become those of the mask.
template <class H, int N, bool OfMask>
void differentiate(const View& view, const Extras& extras, const float* offset, int64_t i0,
                   int64_t i1, int64_t j0, int64_t j1, float* w, float* ds) {
  const Call& c = view.call;
  const float scale = c.scale, bias = c.bias_number;
  const bool is_cut = view.cuts(i0, i1, j0, j1), has_bias = c.bias.data;
  for (int64_t j = 0; j < j1 - j0; ++j)
#pragma GCC unroll 3
    for (int n = 0; n < N; ++n) {
      const int64_t at = j * kPanel + n * kLanes;
      Vector s = load(w + at) * scale + bias, dw = load(ds + at), x, dx;
      if (has_bias) s += load(extras.bias + at);
      if (offset) dw += load(offset + n * kLanes);
      if constexpr (OfMask) {
        x = H::weigh(s), dx = dw * x;
      } else {
        const float* mask = extras.mask + at;
        H::differentiate(s, c.mask_is_bool ? dw : masked(c, mask, dw), x, dx);
        x = masked(c, mask, x);
        if (c.mask_is_bool) dx = masked(c, mask, dx);
      }
      if (__builtin_expect(is_cut, 0)) {
        const Integers seen = view.sees(i0, n, j0 + j);
        x = keep(seen, x), dx = keep(seen, dx);
      }
      store(w + at, x);
      store(ds + at, dx);
    }
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
  float* offsets;          // what rows add to the gradients of their weights
  float *w, *ds, *dk, *dv, *room;
  double* sums;  // of the gradient of a bias or a mask

  Packed(const Call& c, int64_t queries, int64_t num_sums)
      : pitch(round_up(c.dim, kLanes)),
        value_pitch(round_up(c.value_dim, kLanes)),
        q_size(c.dim * kPanel),
        g_size(c.value_dim * kPanel) {
    const int64_t most = kPacked / (c.dim > c.value_dim ? c.dim : c.value_dim) / kPanel;
    const int64_t all = (queries + kPanel - 1) / kPanel;
    panels = most < 1 ? 1 : most < all ? most : all;
    span = panels * kPanel;
    scratch.reserve(panels * (2 * q_size + g_size + kPanel * (1 + pitch + value_pitch)) +
                    kKeys * (2 * kPanel + pitch + value_pitch) + Extras::kRoom + 2 * num_sums);
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
    room = scratch.take(Extras::kRoom);
    sums = scratch.take_wide(num_sums);
  }

  // What row i adds to the gradients of its weights. Both numbers may be nearly what g . v is, so
  // that g is the one that values meet, and the sum is of 64 bits.
  static float offset_of(const View& view, int64_t i, const float* g) {
    const Call& c = view.call;
    double offset = c.dsums.data ? c.moved * *at(c.dsums, view.b, view.h, i) : 0;
    if (!c.is_divided) return offset;
    const float* o = at(c.o, view.b, view.h, i);
    for (int64_t d = 0; d < c.value_dim; ++d) offset -= double(g[d]) * o[d];
    return offset;
  }

  // Queries [s0, s1) of a head, and g times their factors.
  void fill(const View& view, int64_t s0, int64_t s1) {
    const Call& c = view.call;
    for (int64_t i = s0; i < s1; ++i) {
      const float factor =
          c.is_divided ? view.factor(i, *at(c.sums, view.b, view.h, i)) : view.factor(i);
      const float *query = at(c.q, view.b, view.h, i), *slope = at(c.g, view.b, view.h, i);
      float *row = q_rows + (i - s0) * pitch, *g_row = g_rows + (i - s0) * value_pitch;
      std::memcpy(row, query, c.dim * 4);
      std::memset(row + c.dim, 0, (pitch - c.dim) * 4);
      for (int64_t d = 0; d < c.value_dim; ++d) g_row[d] = slope[d] * factor;
      offsets[i - s0] = offset_of(view, i, g_row);
      std::memset(g_row + c.value_dim, 0, (value_pitch - c.value_dim) * 4);
    }
    for (int64_t i0 = s0, p = 0; i0 < s1; i0 += kPanel, ++p) {
      const int64_t rows = i0 + kPanel < s1 ? kPanel : s1 - i0;
      turn(q_rows + p * kPanel * pitch, pitch, rows, c.dim, q + p * q_size, kPanel);
      turn(g_rows + p * kPanel * value_pitch, value_pitch, rows, c.value_dim, g + p * g_size,
           kPanel);
      clear_lanes(q + p * q_size, rows, c.dim);
      clear_lanes(g + p * g_size, rows, c.value_dim);
    }
  }

  // Weights and gradients of scores, or of the mask, for a panel of rows from i0 on; false where
  // these rows see none of the keys.
  template <class H, bool OfMask>
  bool meet(const View& view, int64_t p, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    const Call& c = view.call;
    Extras extras(room);
    if (view.start(i0) >= j1 || view.end(i1) <= j0) return false;
    if (!extras.fetch(view, i0, i1, j0, j1)) return false;
    const int64_t hk = view.h / (c.q_heads / c.kv_heads);
    const float *k = at(c.k, view.b, hk, j0), *v = at(c.v, view.b, hk, j0);
    const float* offset = c.is_divided || c.dsums.data ? offsets + p * kPanel : nullptr;
    by_width(i1 - i0, [&](auto n) INLINE {
      constexpr int N = n;
      multiply_keys<N>(j1 - j0, c.value_dim, v, c.v.row, g + p * g_size, ds);
      multiply_keys<N>(j1 - j0, c.dim, k, c.k.row, q + p * q_size, w);
      differentiate<H, N, OfMask>(view, extras, offset, i0, i1, j0, j1, w, ds);
    });
    return true;
  }

  // dk and dv of keys [j0, j1) from queries [s0, s1), and their part of dq.
  template <class H>
  void meet_all(const View& view, int64_t s0, int64_t s1, int64_t j0, int64_t j1) {
    const Call& c = view.call;
    std::memset(dk, 0, kKeys * pitch * 4);
    std::memset(dv, 0, kKeys * value_pitch * 4);
    const float* k = at(c.k, view.b, view.h / (c.q_heads / c.kv_heads), j0);
    for (int64_t i0 = s0, p = 0; i0 < s1; i0 += kPanel, ++p) {
      const int64_t i1 = i0 + kPanel < s1 ? i0 + kPanel : s1;
      if (!meet<H, false>(view, p, i0, i1, j0, j1)) continue;
      by_width(i1 - i0, [&](auto n) INLINE {
        add_turned<n>(dq + p * q_size, c.dim, k, c.k.row, ds, j1 - j0);
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
  const int64_t first = share * c.block, existing = c.existing ? c.existing[b] : c.keys;
  const int64_t last = first + c.block < c.keys ? first + c.block : c.keys;
  const int64_t seen = last < existing ? last : existing;
  Packed packed(c, c.queries, 0);
  for (int64_t h = h0; h < h1; ++h) {
    const View view(c, b, h);
    for (int64_t s0 = 0; s0 < c.queries; s0 += packed.span) {
      const int64_t s1 = s0 + packed.span < c.queries ? s0 + packed.span : c.queries;
      const bool is_first = h == h0 && s0 == 0;
      packed.fill(view, s0, s1);
      std::memset(packed.dq, 0, packed.panels * packed.q_size * 4);
      for (int64_t j0 = first; j0 < seen; j0 += kKeys) {
        const int64_t j1 = j0 + kKeys < seen ? j0 + kKeys : seen;
        packed.meet_all<H>(view, s0, s1, j0, j1);
        put(at(c.dk, b, hk, j0), c.dk.row, packed.dk, packed.pitch, j1 - j0, c.dim, c.scale,
            is_first);
        put(at(c.dv, b, hk, j0), c.dv.row, packed.dv, packed.value_pitch, j1 - j0, c.value_dim, 1,
            is_first);
      }
      const int64_t row = ((share * c.samples + b) * c.q_heads + h) * c.queries + s0;
      if (c.parts) packed.put_dq(c, s0, s1, c.parts + row * c.dim, c.dim);
      else packed.put_dq(c, s0, s1, at(c.dq, b, h, s0), c.dq.row);
    }
  }
  for (int64_t j = seen > first ? seen : first; j < last; ++j) {
    std::memset(at(c.dk, b, hk, j), 0, c.dim * 4);
    std::memset(at(c.dv, b, hk, j), 0, c.value_dim * 4);
  }
  if (c.parts && c.finished[b * c.kv_heads + hk].fetch_add(1) + 1 == shares)
    add_shares(c, b, h0, h1, shares);  // by the last to finish
}

// How the gradient of a bias or a mask is cut into pieces of work, along each axis that it has.
struct Pieces {
  static constexpr int64_t kColumns = 16 * kKeys;
  int64_t samples, heads, panels, columns;
  explicit Pieces(const Call& c)
      : samples(c.dscores.sample ? c.samples : 1),
        heads(c.dscores.head ? c.q_heads : 1),
        panels(c.dscores.row ? (c.queries + kPanel - 1) / kPanel : 1),
        columns(c.dscores.key ? (c.keys + kColumns - 1) / kColumns : 1) {}
  int64_t count() const { return samples * heads * panels * columns; }
};

// The sum of sums[keys][panel] along the axes that the gradient lacks.
void put_scores(const Scores& x, float* out, double* sums, int64_t rows, int64_t keys) {
  if (x.row && x.key)
    return turn(narrow(sums, keys * kPanel), kPanel, keys, rows, out, x.row);
  for (int64_t i = 0; i < (x.row ? rows : 1); ++i)
    for (int64_t j = 0; j < (x.key ? keys : 1); ++j) {
      double total = 0;
      for (int64_t m = j; m < (x.key ? j + 1 : kKeys); ++m)
        for (int64_t n = i; n < (x.row ? i + 1 : kPanel); ++n) total += sums[m * kPanel + n];
      out[i * x.row + j * x.key] = total;
    }
}

// A piece of the gradient of a bias or a mask, from all scores that share its numbers.
template <class H, bool OfMask>
void differentiate_scores(const Call& c, int64_t piece) {
  const Scores& x = c.dscores;
  const Pieces pieces(c);
  const auto end = [](int64_t first, int64_t step, int64_t all) {
    return first + step < all ? first + step : all;
  };
  const int64_t j0 = piece % pieces.columns * Pieces::kColumns;
  const int64_t i0 = piece / pieces.columns % pieces.panels * kPanel;
  const int64_t h0 = piece / pieces.columns / pieces.panels % pieces.heads;
  const int64_t b0 = piece / pieces.columns / pieces.panels / pieces.heads;
  const int64_t b1 = x.sample ? b0 + 1 : c.samples, h1 = x.head ? h0 + 1 : c.q_heads;
  const int64_t i1 = x.row ? end(i0, kPanel, c.queries) : c.queries;
  const int64_t j1 = x.key ? end(j0, Pieces::kColumns, c.keys) : c.keys;
  const int64_t size = (x.key ? round_up(j1 - j0, kKeys) : kKeys) * kPanel;
  Packed packed(c, kPanel, size);
  std::memset(packed.sums, 0, size * 8);
  for (int64_t b = b0; b < b1; ++b)
    for (int64_t h = h0; h < h1; ++h) {
      const View view(c, b, h);
      const int64_t seen = j1 < view.existing ? j1 : view.existing;
      for (int64_t i = i0; i < i1; i += kPanel) {
        const int64_t rows = end(i, kPanel, i1) - i;
        packed.fill(view, i, i + rows);
        for (int64_t j = j0; j < seen; j += kKeys) {
          const int64_t keys = end(j, kKeys, seen) - j;
          if (!packed.meet<H, OfMask>(view, 0, i, i + rows, j, j + keys)) continue;
          clear_lanes(packed.ds, rows, keys);
          double* sums = packed.sums + (x.key ? j - j0 : 0) * kPanel;
          for (int64_t m = 0; m < keys; ++m)
            for (int64_t n = 0; n < rows; n += kLanes)
              add_wide(sums + m * kPanel + n, load(packed.ds + m * kPanel + n));
        }
      }
    }
  float* out = static_cast<float*>(x.data) + b0 * x.sample + h0 * x.head + i0 * x.row + j0 * x.key;
  put_scores(x, out, packed.sums, i1 - i0, j1 - j0);
}

}  // namespace

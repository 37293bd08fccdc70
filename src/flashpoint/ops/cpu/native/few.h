// Forward of few queries, as in decoding: head dims are lanes, not queries, and all query heads of
// a key head meet a key while it is at hand. S = Q K', O += h(S) V.
#pragma once

#include "call.h"

namespace {

constexpr int64_t kTogether = 4;  // rows that meet a key at a time

// The sum of each vector's lanes.
inline Four add_lanes(const Vector (&x)[4]) {
  Four quarter[4];
  for (int m = 0; m < 4; ++m) {
    Four parts[kLanes / 4];
    std::memcpy(parts, &x[m], sizeof(Vector));
    for (int step = kLanes / 8; step > 0; step /= 2)
      for (int i = 0; i < step; ++i) parts[i] += parts[i + step];
    quarter[m] = parts[0];
  }
  const Four &a = quarter[0], &b = quarter[1], &c = quarter[2], &d = quarter[3];
  const Four low = Four{a[0], b[0], c[0], d[0]} + Four{a[1], b[1], c[1], d[1]};
  return low + (Four{a[2], b[2], c[2], d[2]} + Four{a[3], b[3], c[3], d[3]});
}

// Rows of q and of the result beside each other, and memory for scores.
struct Rows {
  int64_t count, pitch, value_pitch;
  float *q, *o;  // [rows][pitch]
  float* w;      // [kTogether][keys], scores that become weights
  double* sums;  // of rows' weights

  Rows(const Call& c, int64_t count)
      : count(count), pitch(round_up(c.dim, kLanes)), value_pitch(round_up(c.value_dim, kLanes)) {
    scratch.reserve(count * (pitch + value_pitch + 2) + kTogether * kKeys);
    q = scratch.take(count * pitch);
    o = scratch.take(count * value_pitch);
    w = scratch.take(kTogether * kKeys);
    sums = scratch.take_wide(count);
    std::memset(o, 0, count * value_pitch * 4);
    std::memset(sums, 0, count * 8);
  }

  // Scores of R rows from `row` on with as many keys, and with none that exists behind them.
  template <int R>
  void meet(int64_t row, int64_t keys, int64_t dim, const float* k, int64_t k_row) {
    const float* first = q + row * pitch;
    const int64_t whole = dim / kLanes * kLanes;
    for (int64_t j = 0; j < keys; j += 4) {
      const float* key[4];
      for (int m = 0; m < 4; ++m) key[m] = k + (j + m < keys ? j + m : keys - 1) * k_row;
      Vector sums[R][4] = {};
      for (int64_t d = 0; d < whole; d += kLanes)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int m = 0; m < 4; ++m) sums[r][m] += load(first + r * pitch + d) * load(key[m] + d);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        Four s = add_lanes(sums[r]);
        for (int64_t d = whole; d < dim; ++d) {
          const float x = first[r * pitch + d];
          s += x * Four{key[0][d], key[1][d], key[2][d], key[3][d]};
        }
        std::memcpy(w + r * kKeys + j, &s, sizeof(s));
      }
    }
  }

  // o of R rows from `row` on += their weights times values.
  template <int R>
  void add(int64_t row, int64_t keys, int64_t dim, const float* v, int64_t v_row) {
    float* total = o + row * value_pitch;
    int64_t at = 0;
    for (; at + 4 * kLanes <= dim; at += 4 * kLanes)  // most of a row while it is at hand
      add_columns<R, 4, R < 4 ? 2 : 1>(total + at, keys, v + at, v_row);
    for (; at + kLanes <= dim; at += kLanes)
      add_columns<R, 1, R < 4 ? 8 : 4>(total + at, keys, v + at, v_row);
    for (; at < dim; ++at)
      for (int r = 0; r < R; ++r) {
        float sum = 0;
        for (int64_t j = 0; j < keys; ++j) sum += w[r * kKeys + j] * v[j * v_row + at];
        total[r * value_pitch + at] += sum;
      }
  }

  // The same of N vectors of columns. Every K-th key has sums of its own: one waits for itself.
  template <int R, int N, int K>
  INLINE inline void add_columns(float* total, int64_t keys, const float* v, int64_t v_row) {
    Vector sums[K][R][N] = {};
    const auto meet_key = [&](int64_t j, int m) INLINE {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const Vector x = load(v + j * v_row + n * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[m][r][n] += w[r * kKeys + j] * x;
      }
    };
    int64_t j = 0;
    for (; j + K <= keys; j += K)
#pragma GCC unroll 8
      for (int m = 0; m < K; ++m) meet_key(j + m, m);
    for (; j < keys; ++j) meet_key(j, 0);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        for (int step = K / 2; step > 0; step /= 2)
          for (int m = 0; m < step; ++m) sums[m][r][n] += sums[m + step][r][n];
        float* place = total + r * value_pitch + n * kLanes;
        store(place, load(place) + sums[0][r][n]);
      }
  }
};

// Lanes of keys from j on that are of [first, end).
inline Integers among(int64_t j, int64_t first, int64_t end) {
  Integers lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  return (lanes >= View::clip(first - j)) & (lanes < View::clip(end - j));
}

// A piece of the rows of a key head: query i of head h is row (h - h0) * queries + i.
template <class H>
void attend_few(const Call& c, int64_t piece) {
  const int64_t group = c.q_heads / c.kv_heads, all = group * c.queries;
  const int64_t blocks = (all + c.block - 1) / c.block, r0 = piece % blocks * c.block;
  const int64_t hk = piece / blocks % c.kv_heads, b = piece / blocks / c.kv_heads;
  Rows rows(c, r0 + c.block < all ? c.block : all - r0);
  const auto head = [&](int64_t r) { return hk * group + (r0 + r) / c.queries; };
  const auto query = [&](int64_t r) { return (r0 + r) % c.queries; };
  const View view(c, b, hk * group);  // without a mask, all heads see the same keys
  int64_t start = c.keys, end = 0;
  for (int64_t r = 0; r < rows.count; ++r) {
    std::memcpy(rows.q + r * rows.pitch, at(c.q, b, head(r), query(r)), c.dim * 4);
    const int64_t first = view.start(query(r)), last = view.end(query(r) + 1);
    if (first < start) start = first;
    if (last > end) end = last;
  }
  const float scale = c.scale, bias = c.bias_number;
  for (int64_t j0 = start / kKeys * kKeys; j0 < end; j0 += kKeys) {
    const int64_t keys = j0 + kKeys < end ? kKeys : end - j0;
    const float *k = at(c.k, b, hk, j0), *v = at(c.v, b, hk, j0);
    const auto meet_rows = [&](auto together, int64_t row) INLINE {
      constexpr int R = together;
      rows.meet<R>(row, keys, c.dim, k, c.k.row);
      for (int r = 0; r < R; ++r) {
        const int64_t i = query(row + r), first = view.start(i), last = view.end(i + 1);
        Vector sum = {};
        for (int64_t j = 0; j < keys; j += kLanes) {
          float* place = rows.w + r * kKeys + j;
          const Vector x = H::weigh(load(place) * scale + bias);
          const Vector kept = keep(among(j0 + j, first, last < j0 + keys ? last : j0 + keys), x);
          sum += kept;
          store(place, kept);
        }
        for (int lane = 0; lane < kLanes; ++lane) rows.sums[row + r] += sum[lane];
      }
      rows.add<R>(row, keys, c.value_dim, v, c.v.row);
    };
    int64_t row = 0;
    for (; row + kTogether <= rows.count; row += kTogether) meet_rows(Number<kTogether>(), row);
    if (row + 2 <= rows.count) meet_rows(Number<2>(), row), row += 2;
    if (row < rows.count) meet_rows(Number<1>(), row);
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    const View of_head(c, b, head(r));
    const RowScale by = of_head.scale_of(query(r), rows.sums[r]);
    float* out = at(c.o, b, head(r), query(r));
    const float* total = rows.o + r * rows.value_pitch;
    for (int64_t d = 0; d < c.value_dim; ++d) out[d] = total[d] * by.lift * by.factor;
  }
}

}  // namespace

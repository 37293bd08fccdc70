// What a call is handed, and who sees whom in it.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>

#include "vectors.h"

// What a call has, as `call.py` fills it in. Strides count numbers; the last axis is dense.
struct Tensor {
  float* data;
  int64_t sample, head, row;
};

// A number for each score, or one for several: their strides are 0 there.
struct Scores {
  void* data;
  int64_t sample, head, row, key;
};

// Few: forward of few queries without a bias or mask. The last two: gradients of these.
enum Kind : int64_t { kForward, kFew, kBackward, kOfBias, kOfMask };

struct Call {
  Tensor q, k, v, o;
  Tensor sums;              // of rows' weights: forward writes, backward reads them; or null
  Tensor g;                 // backward: the gradient of o
  Tensor dsums;             // backward: that of the sums, or null
  Tensor dq, dk, dv;        // backward
  Scores bias, mask;        // added to scores; weights are multiplied by it, or kept where it is 1
  Scores dscores;           // of bias or mask: strides are 0 where a number is a sum
  float* parts;             // backward: dq of each share of the keys, dense, or null
  const int64_t* existing;  // keys of each sample, or null
  std::atomic<int64_t>* finished;  // backward: shares done of each key head, or null
  int64_t samples, q_heads, kv_heads, queries, keys, dim, value_dim;
  int64_t left, right;  // of the window; as large as int64 allows where there is none
  int64_t block;        // forward: rows of a piece; few: of all heads; backward: keys of a share
  int64_t threads;
  Kind kind;
  int64_t mask_is_bool;
  int64_t is_divided;   // rows are divided by their sums
  int64_t counts_keys;  // n is the number of keys, not of those that a row sees
  double scale, bias_number;
  double moved;          // the scale's share of the weights, where it stands behind h
  double factor, alpha;  // of a row: factor * n ** -alpha, in which moved is
  double floor;          // of a row's sum: floor * n ** -alpha
};

namespace {

inline float* at(const Tensor& x, int64_t b, int64_t h, int64_t i) {
  return x.data + b * x.sample + h * x.head + i * x.row;
}

constexpr float kTiny = 0x1p-64;  // a number over less than this may overflow

// What a row's sum over values is multiplied by: first by what lifts it, where its sum is tiny.
struct RowScale {
  float lift, factor;
};

// Which keys the rows of a head see.
struct View {
  const Call& call;
  int64_t b, h, shift, existing;
  int64_t shared = -1;  // keys that each row sees, if they all see as many
  View(const Call& c, int64_t b, int64_t h)
      : call(c),
        b(b),
        h(h),
        shift(c.keys - c.queries),
        existing(c.existing ? c.existing[b] : c.keys) {
    const bool has_window = c.left != INT64_MAX || c.right != INT64_MAX;
    if (!has_window && c.mask.row == 0) shared = count(0);
  }
  // Where row i of a bias or mask begins.
  int64_t place(const Scores& x, int64_t i) const {
    return b * x.sample + h * x.head + i * x.row;
  }
  int64_t start(int64_t i0) const {
    if (call.left == INT64_MAX) return 0;
    const int64_t j = i0 + shift - call.left;
    return j > 0 ? j : 0;
  }
  int64_t end(int64_t i1) const {
    if (call.right == INT64_MAX) return existing;
    const int64_t j = i1 + shift + call.right;
    return j < existing ? j : existing;
  }
  // Whether some row of [i0, i1) does not see some key of [j0, j1), mask apart.
  bool cuts(int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
    const bool on_left = call.left != INT64_MAX && j0 < i1 - 1 + shift - call.left;
    return on_left || (call.right != INT64_MAX && j1 - 1 > i0 + shift + call.right);
  }
  // Lanes of the n-th vector of rows behind i0 whose window has key j.
  Integers sees(int64_t i0, int n, int64_t j) const {
    Integers row;
    for (int lane = 0; lane < kLanes; ++lane) row[lane] = lane;
    const int64_t first = i0 + n * kLanes + shift;  // of these lanes, a key's position
    Integers seen = ~Integers{};
    if (call.right != INT64_MAX) seen &= row >= clip(j - call.right - first);
    if (call.left != INT64_MAX) seen &= row <= clip(j + call.left - first);
    return seen;
  }
  static int32_t clip(int64_t x) {
    return x < -1 ? -1 : x > kLanes ? kLanes : static_cast<int32_t>(x);
  }
  // How many keys row i sees.
  int64_t count(int64_t i) const {
    const int64_t j0 = start(i), j1 = end(i + 1);
    if (j1 <= j0 || !call.mask.data || !call.mask_is_bool) return j1 - j0;
    const uint8_t* mask = static_cast<const uint8_t*>(call.mask.data) + place(call.mask, i);
    const int64_t step = call.mask.key;
    if (step == 0) return *mask ? j1 - j0 : 0;
    int64_t seen = 0;
    if (step == 1)  // which the compiler makes vectors of
      for (int64_t j = j0; j < j1; ++j) seen += mask[j] != 0;
    else
      for (int64_t j = j0; j < j1; ++j) seen += mask[j * step] != 0;
    return seen;
  }
  // n ** -alpha of row i
  double over_length(int64_t i) const {
    if (call.alpha == 0) return 1;
    const int64_t seen = call.counts_keys ? call.keys : shared >= 0 ? shared : count(i);
    const double n = seen > 1 ? seen : 1;
    if (call.alpha == 1) return 1 / n;
    return call.alpha == -1 ? n : std::pow(n, -call.alpha);
  }
  // What row i multiplies its sum over values by, where nothing or its sum of weights divides it.
  float factor(int64_t i) const { return call.factor * over_length(i); }
  float factor(int64_t i, float sum) const { return over(divisor(i, sum)); }
  // What finishes row i of forward, given the sum of its weights; that is written if asked for.
  RowScale scale_of(int64_t i, double sum) const {
    const float total = static_cast<float>(sum * call.moved);
    if (call.sums.data) *at(call.sums, b, h, i) = total;
    if (!call.is_divided) return {1, factor(i)};
    const float divided_by = divisor(i, total);
    const float lift = divided_by != 0 && divided_by < kTiny ? 1 / kTiny : 1;
    return {lift, over(divided_by * lift)};
  }

 private:
  float divisor(int64_t i, float sum) const {
    return sum + (call.floor == 0 ? 0 : static_cast<float>(call.floor * over_length(i)));
  }
  float over(float divisor) const {
    return divisor == 0 ? 0 : static_cast<float>(call.moved) / divisor;
  }
};

}  // namespace

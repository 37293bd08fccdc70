// The kernel beside the definition in plain loops of doubles, for builds that watch memory and for
// other CPUs. Prints the cases that miss, and exits with their number.

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <vector>

#include "attention.cpp"

namespace {

struct Shape {
  int64_t samples, q_heads, kv_heads, queries, keys, dim, value_dim;
};
constexpr Shape kShapes[] = {{2, 3, 3, 67, 129, 32, 32},  {1, 4, 2, 50, 133, 24, 40},
                             {1, 2, 1, 90, 31, 16, 7},    {1, 1, 1, 13, 9, 65, 1},
                             {1, 2, 2, 100, 300, 8, 130}, {1, 1, 1, 1, 1, 1, 1},
                             {1, 1, 1, 24, 64, 31, 32},   {1, 1, 1, 24, 64, 33, 158},
                             {2, 6, 2, 1, 129, 33, 70},   {1, 10, 2, 2, 70, 64, 15}};
constexpr int64_t kWindows[][2] = {{INT64_MAX, INT64_MAX}, {INT64_MAX, 0}, {20, 0}, {5, 9}};
constexpr double kScale = 0.3, kMost = 2e-6;

// Bias and mask, and which of the axes samples, heads, queries and keys they have.
struct Extra {
  bool has_bias, has_mask, is_bool;
  std::array<bool, 4> axes;
};
constexpr Extra kExtras[] = {{false, false, false, {}},
                             {true, false, false, {true, true, true, true}},
                             {true, true, true, {false, true, false, true}},
                             {true, true, false, {true, false, true, false}},
                             {false, true, true, {true, true, true, true}}};

struct Exact {
  std::vector<double> o, dq, dk, dv, dbias, dmask;
};

std::vector<float> draw(int64_t size, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& x : values) x = normal(random);
  return values;
}

Tensor as_tensor(std::vector<float>& x, int64_t heads, int64_t rows, int64_t columns) {
  return {x.data(), heads * rows * columns, rows * columns, columns};
}

// h and its slope: relu's, or gelu's
constexpr bool kIsGelu = std::is_same_v<ACTIVATION, Gelu>;
double weigh(double s) {
  return kIsGelu ? s * std::erfc(-s * std::sqrt(0.5)) / 2 : std::max(s, 0.0);
}
double slope_of(double s) {
  if (!kIsGelu) return s > 0;
  const double density = std::exp(-s * s / 2) / std::sqrt(2 * std::acos(-1));
  return std::erfc(-s * std::sqrt(0.5)) / 2 + s * density;
}

// Scores of every query head and those of a bias or mask, some of which share a number.
struct Grid {
  std::array<int64_t, 4> sizes, strides;
  Grid(const Shape& s, const std::array<bool, 4>& axes)
      : sizes{s.samples, s.q_heads, s.queries, s.keys} {
    int64_t step = 1;
    for (int axis = 3; axis >= 0; --axis) {
      strides[axis] = axes[axis] ? step : 0;
      if (axes[axis]) step *= sizes[axis];
    }
    count = step;
  }
  int64_t count;
  int64_t at(int64_t row, int64_t key) const {  // of all queries of all heads
    const int64_t i = row % sizes[2], h = row / sizes[2] % sizes[1], b = row / sizes[2] / sizes[1];
    return b * strides[0] + h * strides[1] + i * strides[2] + key * strides[3];
  }
  Scores place(void* data) const {
    const auto kept = [&](int axis) { return sizes[axis] > 1 ? strides[axis] : 0; };
    return {data, kept(0), kept(1), kept(2), kept(3)};
  }
};

// Divided by the number of keys that a query sees.
Exact define(const Shape& s, int64_t left, int64_t right, const Extra& extra, const Grid& grid,
             const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
             const std::vector<float>& g, const std::vector<float>& bias,
             const std::vector<float>& mask) {
  Exact e{std::vector<double>(g.size()),    std::vector<double>(q.size()),
          std::vector<double>(k.size()),    std::vector<double>(v.size()),
          std::vector<double>(bias.size()), std::vector<double>(mask.size())};
  for (int64_t row = 0; row < s.samples * s.q_heads * s.queries; ++row) {
    const int64_t head = row / s.queries / (s.q_heads / s.kv_heads);  // of k, in all samples
    const int64_t at = row % s.queries + s.keys - s.queries;
    const int64_t first = left != INT64_MAX && at > left ? at - left : 0;
    const int64_t end = right != INT64_MAX && at + right + 1 < s.keys ? at + right + 1 : s.keys;
    int64_t seen = 0;
    for (int64_t j = first; j < end; ++j)
      seen += !extra.is_bool || mask[grid.at(row, j)] != 0;
    const double n = seen > 1 ? seen : 1;
    for (int64_t j = first; j < end; ++j) {
      const int64_t key = head * s.keys + j, place = grid.at(row, j);
      const double m = extra.has_mask ? mask[place] : 1;
      double score = 0, dw = 0;
      for (int64_t d = 0; d < s.dim; ++d) score += double(q[row * s.dim + d]) * k[key * s.dim + d];
      score = score * kScale + (extra.has_bias ? bias[place] : 0);
      const double weight = m * weigh(score);
      for (int64_t d = 0; d < s.value_dim; ++d) {
        const int64_t x = row * s.value_dim + d, y = key * s.value_dim + d;
        e.o[x] += weight * v[y] / n;
        e.dv[y] += weight * g[x] / n;
        dw += double(g[x]) * v[y] / n;
      }
      if (extra.has_mask) e.dmask[place] += dw * weigh(score);
      dw *= m * slope_of(score);
      if (extra.has_bias) e.dbias[place] += dw;
      for (int64_t d = 0; d < s.dim; ++d) {
        e.dq[row * s.dim + d] += kScale * dw * k[key * s.dim + d];
        e.dk[key * s.dim + d] += kScale * dw * q[row * s.dim + d];
      }
    }
  }
  return e;
}

double error(const std::vector<float>& got, const std::vector<double>& exact) {
  double worst = 0, largest = 1e-2;  // score and bias of a single key may nearly cancel
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(got[i] - exact[i]);
    if (!(off <= worst)) worst = off;
    largest = std::max(largest, std::abs(exact[i]));
  }
  return worst / largest;
}

// Of output and gradients; keys in backward are shared out by `block`.
int count_misses(const Shape& s, int64_t left, int64_t right, const Extra& extra, int64_t block,
                 std::mt19937& random) {
  const Grid grid(s, extra.axes);
  auto q = draw(s.samples * s.q_heads * s.queries * s.dim, random);
  auto k = draw(s.samples * s.kv_heads * s.keys * s.dim, random);
  auto v = draw(s.samples * s.kv_heads * s.keys * s.value_dim, random);
  auto g = draw(s.samples * s.q_heads * s.queries * s.value_dim, random);
  auto bias = draw(extra.has_bias ? grid.count : 0, random);
  auto mask = draw(extra.has_mask ? grid.count : 0, random);
  std::vector<uint8_t> bytes(mask.size());
  for (size_t i = 0; extra.is_bool && i < mask.size(); ++i) mask[i] = bytes[i] = mask[i] > 0;
  std::vector<float> o(g.size()), dq(q.size()), dk(k.size()), dv(v.size());
  std::vector<float> few, dbias(bias.size()), dmask(mask.size());
  Call call{};
  call.q = as_tensor(q, s.q_heads, s.queries, s.dim);
  call.k = as_tensor(k, s.kv_heads, s.keys, s.dim);
  call.v = as_tensor(v, s.kv_heads, s.keys, s.value_dim);
  call.o = as_tensor(o, s.q_heads, s.queries, s.value_dim);
  call.mask_is_bool = extra.is_bool;
  if (extra.has_bias) call.bias = grid.place(bias.data());
  if (extra.is_bool) call.mask = grid.place(bytes.data());
  else if (extra.has_mask) call.mask = grid.place(mask.data());
  call.samples = s.samples, call.q_heads = s.q_heads, call.kv_heads = s.kv_heads;
  call.queries = s.queries, call.keys = s.keys, call.dim = s.dim, call.value_dim = s.value_dim;
  call.left = left, call.right = right, call.block = 48, call.threads = 1;
  call.scale = kScale, call.moved = call.factor = call.alpha = 1;
  if (s.queries <= 2 && !extra.has_bias && !extra.has_mask) {
    call.kind = kFew, call.block = block == 64 ? 3 : 100;
    flashpoint_run(&call, nullptr);
    few = o, o.assign(o.size(), 0);
    call.kind = kForward, call.block = 48;
  }
  flashpoint_run(&call, nullptr);
  call.g = as_tensor(g, s.q_heads, s.queries, s.value_dim);
  call.dq = as_tensor(dq, s.q_heads, s.queries, s.dim);
  call.dk = as_tensor(dk, s.kv_heads, s.keys, s.dim);
  call.dv = as_tensor(dv, s.kv_heads, s.keys, s.value_dim);
  call.kind = kBackward, call.block = block;
  const int64_t shares = (s.keys + block - 1) / block;
  std::vector<float> parts(shares * q.size());
  std::vector<std::atomic<int64_t>> finished(s.samples * s.kv_heads);
  for (auto& count : finished) count = 0;
  if (shares > 1) call.parts = parts.data(), call.finished = finished.data();
  flashpoint_run(&call, nullptr);
  if (extra.has_bias) {
    call.kind = kOfBias, call.dscores = grid.place(dbias.data());
    flashpoint_run(&call, nullptr);
  }
  if (extra.has_mask && !extra.is_bool) {
    call.kind = kOfMask, call.dscores = grid.place(dmask.data());
    flashpoint_run(&call, nullptr);
  }
  Exact e = define(s, left, right, extra, grid, q, k, v, g, bias, mask);
  if (extra.is_bool) dmask.clear();
  int misses = !few.empty() && !(error(few, e.o) < kMost);
  for (double x : {error(o, e.o), error(dq, e.dq), error(dk, e.dk), error(dv, e.dv),
                   error(dbias, e.dbias), error(dmask, e.dmask)})
    misses += !(x < kMost);
  if (misses)
    std::printf("%d of 7 miss: %ld queries, %ld keys\n", misses, long(s.queries), long(s.keys));
  return misses;
}

}  // namespace

int main() {
  std::mt19937 random(0);
  int misses = 0;
  for (const Shape& shape : kShapes)
    for (const auto& [left, right] : kWindows)
      for (const Extra& extra : kExtras)
        for (int64_t block : {1000, 64})
          misses += count_misses(shape, left, right, extra, block, random);
  return misses;
}

// Biases and masks that are tensors, a tile at a time.
#pragma once

#include "call.h"

namespace {

using Bits = uint32_t __attribute__((may_alias));

// What the scores of a tile meet.
class Extras {
 public:
  static constexpr int64_t kRoom = 3 * kKeys * kPanel;
  float *bias, *mask;  // [keys][panel]; booleans are words with all bits set, or none
  explicit Extras(float* room)
      : bias(room), mask(room + kKeys * kPanel), rows(room + 2 * kKeys * kPanel) {}

  // Fetches those of rows [i0, i1) and keys [j0, j1). False where booleans hide all of them.
  bool fetch(const View& view, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    const Call& c = view.call;
    if (c.bias.data) take<float>(c.bias, view, i0, i1, j0, j1, bias);
    if (!c.mask.data) return true;
    if (c.mask_is_bool) return take<uint8_t>(c.mask, view, i0, i1, j0, j1, mask);
    take<float>(c.mask, view, i0, i1, j0, j1, mask);
    return true;
  }

 private:
  float* rows;  // [rows][keys]

  static uint32_t bits_of(uint8_t x) { return x ? ~uint32_t{0} : 0; }
  static uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
  }

  // Whether any bit of them is set.
  template <class T>
  bool take(const Scores& x, const View& view, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
            float* out) {
    const T* from = static_cast<const T*>(x.data) + view.place(x, i0) + j0 * x.key;
    const int64_t num_rows = i1 - i0, num_keys = j1 - j0;
    uint32_t any = 0;
    if (x.row == 0) {
      for (int64_t j = 0; j < num_keys; ++j) {
        const uint32_t bits = bits_of(from[j * x.key]);
        any |= bits;
        Bits* to = reinterpret_cast<Bits*>(out + j * kPanel);
        for (int64_t i = 0; i < kPanel; ++i) to[i] = bits;
      }
      return any;
    }
    if (std::is_same_v<T, float> && x.key == 1) {
      turn(reinterpret_cast<const float*>(from), x.row, num_rows, num_keys, out, kPanel);
      clear_lanes(out, num_rows, num_keys);
      return true;
    }
    for (int64_t i = 0; i < num_rows; ++i, from += x.row) {
      Bits* to = reinterpret_cast<Bits*>(rows + i * kKeys);
      if (x.key == 1)  // which the compiler makes vectors of
        for (int64_t j = 0; j < num_keys; ++j) any |= to[j] = bits_of(from[j]);
      else
        for (int64_t j = 0; j < num_keys; ++j) any |= to[j] = bits_of(from[j * x.key]);
    }
    turn(rows, kKeys, num_rows, num_keys, out, kPanel);
    clear_lanes(out, num_rows, num_keys);
    return any;
  }
};

// Weights behind a mask, or their gradients before it.
INLINE inline Vector masked(const Call& c, const float* mask, Vector x) {
  if (!c.mask.data) return x;
  return c.mask_is_bool ? keep(reinterpret_cast<Integers>(load(mask)), x) : x * load(mask);
}

}  // namespace

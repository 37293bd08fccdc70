/* Lines that a visitor draws as an image of the digits' data set.

   Its images are bitmaps of 32 x 32, counted in blocks of 4 x 4, so a pixel is a number from 0 to 16. Digits
   were made upright before, by a shear that puts their left ends at top and bottom below each other, and brought to
   one height, about one width and one amount of ink. So are lines here: their slant and their size on the pad and
   the width of the pen do not matter. */
const Digits = (() => {
  "use strict";
  const SIDE = 32;
  const BLOCK = 4;
  const BOX = { width: 18, height: 32 };
  const INK = 313; // pixels; the mean of the data, for every digit about the same
  const RADII = [1.2, 4.5];
  const EDGE = 0.1; // share of the height that counts as its top or bottom
  const MOST_STRETCH = 2.5; // of the width beside the height: a one stays narrow

  const bounds = (lines) => {
    const points = lines.flat();
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
    return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
  };

  const upright = (lines) => {
    const { top, bottom } = bounds(lines);
    const height = bottom - top;
    if (height === 0) return lines;
    const leftOf = (isThere) => Math.min(...lines.flat().filter(([, y]) => isThere(y)).map(([x]) => x));
    const leftAtTop = leftOf((y) => y <= top + EDGE * height);
    const leftAtBottom = leftOf((y) => y >= bottom - EDGE * height);
    const slope = (leftAtBottom - leftAtTop) / height;
    return lines.map((line) => line.map(([x, y]) => [x - slope * (y - top), y]));
  };

  /* The lines in the middle of the bitmap, so that a pen of this radius fills the box. */
  const fit = (lines, radius) => {
    const { left, right, top, bottom } = bounds(lines);
    const [width, height] = [right - left, bottom - top];
    const [roomX, roomY] = [BOX.width - 2 * radius, BOX.height - 2 * radius];
    const sizeY = Math.min(roomY / Math.max(height, 1e-6), (MOST_STRETCH * roomX) / Math.max(width, 1e-6), 1e3);
    const sizeX = Math.min(roomX / Math.max(width, 1e-6), MOST_STRETCH * sizeY);
    const [centerX, centerY] = [(left + right) / 2, (top + bottom) / 2];
    return lines.map((line) => line.map(([x, y]) =>
      [(x - centerX) * sizeX + SIDE / 2, (y - centerY) * sizeY + SIDE / 2]));
  };

  const distance = (x, y, [x0, y0], [x1, y1]) => {
    const [dx, dy] = [x1 - x0, y1 - y0];
    const length = dx * dx + dy * dy;
    const share = length ? Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / length)) : 0;
    return Math.hypot(x - x0 - share * dx, y - y0 - share * dy);
  };

  /* A bitmap: 1 where the pen went. */
  const ink = (lines, radius) => {
    const bitmap = new Uint8Array(SIDE * SIDE);
    for (const line of lines) {
      for (let i = 0; i < Math.max(line.length - 1, 1); i += 1) {
        const [from, to] = [line[i], line[i + 1] ?? line[i]];
        const low = (a, b) => Math.max(0, Math.floor(Math.min(a, b) - radius));
        const high = (a, b) => Math.min(SIDE, Math.ceil(Math.max(a, b) + radius));
        for (let y = low(from[1], to[1]); y < high(from[1], to[1]); y += 1) {
          for (let x = low(from[0], to[0]); x < high(from[0], to[0]); x += 1) {
            if (distance(x + 0.5, y + 0.5, from, to) <= radius) bitmap[y * SIDE + x] = 1;
          }
        }
      }
    }
    return bitmap;
  };

  /* The bitmap with as much ink as the data have, as near as the width of a pen may bring it. */
  const toBitmap = (drawn) => {
    const lines = upright(drawn);
    let [thin, thick] = RADII;
    for (let i = 0; i < 8; i += 1) {
      const radius = (thin + thick) / 2;
      const amount = ink(fit(lines, radius), radius).reduce((a, b) => a + b, 0);
      if (amount < INK) thin = radius; else thick = radius;
    }
    return ink(fit(lines, thick), thick);
  };

  /* Counts of blocks, from 0 to 16, as bytes from 0 to 255. */
  const fromBitmap = (bitmap) => {
    const side = SIDE / BLOCK;
    const counts = new Uint8Array(side * side);
    bitmap.forEach((bit, i) => {
      const [x, y] = [i % SIDE, Math.floor(i / SIDE)];
      counts[Math.floor(y / BLOCK) * side + Math.floor(x / BLOCK)] += bit;
    });
    return counts.map((count) => Math.round(count * (255 / 16)));
  };

  return { fromBitmap, fromLines: (lines) => fromBitmap(toBitmap(lines)) };
})();

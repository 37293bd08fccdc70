/* Attention as colors over a picture. A patch with a weight of exactly zero is not painted. */
const Heat = (() => {
  "use strict";
  const STOPS = [[66, 10, 104], [106, 23, 110], [147, 38, 103], [188, 55, 84], [221, 81, 58], [243, 120, 25],
    [252, 165, 10], [246, 215, 70], [252, 255, 164]]; // inferno, without its darkest part
  const PIXELS = 160;

  const color = (share) => {
    const place = Math.min(1, Math.max(0, share)) * (STOPS.length - 1);
    const low = Math.min(Math.floor(place), STOPS.length - 2);
    return STOPS[low].map((from, c) => Math.round(from + (place - low) * (STOPS[low + 1][c] - from)));
  };

  const dim = (r, g, b) => {
    const gray = 20 + 0.5 * (0.299 * r + 0.587 * g + 0.114 * b);
    return [gray, gray, gray];
  };

  /* Sizes of the weights that keys get from a query, or from all queries on average; zero only if all are. */
  const row = (weights, { tokens, offset }, query) => {
    const sizes = new Float64Array(tokens);
    const queries = query === "all" ? Array.from({ length: tokens }, (_, i) => i) : [query];
    for (const q of queries) {
      for (let k = 0; k < tokens; k += 1) sizes[k] += Math.abs(weights[offset + q * tokens + k]) / queries.length;
    }
    return sizes;
  };

  /* The picture with a map over it; `marked` is the patch that asks. */
  const draw = (canvas, picture, sizes, grid, marked) => {
    canvas.width = PIXELS;
    canvas.height = PIXELS;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, 0, 0, PIXELS, PIXELS);
    const largest = Math.max(...sizes, 1e-30);
    const edge = (i) => Math.round((i * PIXELS) / grid);
    sizes.forEach((size, i) => {
      if (size === 0) return;
      const [x, y] = [i % grid, Math.floor(i / grid)];
      const share = size / largest;
      pen.fillStyle = `rgb(${color(share).join(" ")} / ${0.62 + 0.28 * share})`;
      pen.fillRect(edge(x), edge(y), edge(x + 1) - edge(x), edge(y + 1) - edge(y));
    });
    if (marked !== null) outline(pen, marked, edge, grid);
  };

  const outline = (pen, patch, edge, grid) => {
    const [x, y] = [patch % grid, Math.floor(patch / grid)];
    pen.lineWidth = 3;
    pen.strokeStyle = "#4ec4d4";
    pen.strokeRect(edge(x) + 1.5, edge(y) + 1.5, edge(x + 1) - edge(x) - 3, edge(y + 1) - edge(y) - 3);
  };

  return { dim, draw, row, scale: `linear-gradient(90deg, ${STOPS.map((stop) => `rgb(${stop.join(" ")})`).join(", ")})` };
})();

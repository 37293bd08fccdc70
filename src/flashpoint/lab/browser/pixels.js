/* Pictures as a model sees them: the part that evaluation sees, resized as Pillow does it, then [C, S, S]. */
const Pixels = (() => {
  "use strict";
  const ZOOM = 256 / 224;

  const roundHalfToEven = (x) => {
    const low = Math.floor(x);
    if (x - low !== 0.5) return Math.round(x);
    return low % 2 ? low + 1 : low;
  };

  /* Left, top, right and bottom of what is seen, in pixels of the picture, and inside it. */
  const viewBox = (view, width, height, size) => {
    if (view === "whole") return [0, 0, width, height];
    const short = roundHalfToEven(size * ZOOM);
    const factor = short / Math.min(width, height);
    const resized = view === "squash" ? [short, short]
      : [roundHalfToEven(width * factor), roundHalfToEven(height * factor)];
    const [left, top] = resized.map((side) => Math.floor((side - size) / 2));
    const [across, down] = [width / resized[0], height / resized[1]];
    return [
      Math.max(left * across, 0), Math.max(top * down, 0),
      Math.min((left + size) * across, width), Math.min((top + size) * down, height),
    ];
  };

  /* For each of `size` places, which pixels count and by how much: a triangle, wider where pixels get fewer. */
  const triangles = (length, first, last, size) => {
    const scale = (last - first) / size;
    const support = Math.max(scale, 1);
    return Array.from({ length: size }, (_, place) => {
      const center = first + (place + 0.5) * scale;
      const start = Math.max(Math.trunc(center - support + 0.5), 0);
      const end = Math.min(Math.trunc(center + support + 0.5), length);
      const shares = [];
      for (let i = start; i < end; i += 1) shares.push(Math.max(0, 1 - Math.abs((i - center + 0.5) / support)));
      const sum = shares.reduce((a, b) => a + b, 0);
      return { start, shares: shares.map((share) => share / sum) };
    });
  };

  const toByte = (x) => Math.min(255, Math.max(0, Math.floor(x + 0.5)));

  /* RGBA of any size to RGB, size x size: along rows first, then along columns, bytes in between. */
  const resize = ({ data, width, height }, box, size) => {
    if (width === size && height === size && box[2] - box[0] === size && box[3] - box[1] === size) {
      return Uint8Array.from({ length: size * size * 3 }, (_, i) => data[Math.floor(i / 3) * 4 + (i % 3)]);
    }
    const across = triangles(width, box[0], box[2], size);
    const down = triangles(height, box[1], box[3], size);
    const firstRow = down[0].start;
    const numRows = down[size - 1].start + down[size - 1].shares.length - firstRow;
    const narrow = new Uint8Array(numRows * size * 3);
    for (let row = 0; row < numRows; row += 1) {
      for (let x = 0; x < size; x += 1) {
        const { start, shares } = across[x];
        for (let c = 0; c < 3; c += 1) {
          let sum = 0;
          for (let i = 0; i < shares.length; i += 1) sum += shares[i] * data[((row + firstRow) * width + start + i) * 4 + c];
          narrow[(row * size + x) * 3 + c] = toByte(sum);
        }
      }
    }
    const pixels = new Uint8Array(size * size * 3);
    for (let y = 0; y < size; y += 1) {
      const { start, shares } = down[y];
      for (let i = 0; i < size * 3; i += 1) {
        let sum = 0;
        for (let j = 0; j < shares.length; j += 1) sum += shares[j] * narrow[(start - firstRow + j) * size * 3 + i];
        pixels[y * size * 3 + i] = toByte(sum);
      }
    }
    return pixels;
  };

  /* Channels first; gray by the weights that Pillow has. */
  const toPlanes = (rgb, channels) => {
    const area = rgb.length / 3;
    const planes = new Uint8Array(channels * area);
    for (let i = 0; i < area; i += 1) {
      const [r, g, b] = rgb.subarray(3 * i, 3 * i + 3);
      if (channels === 1) planes[i] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
      else [planes[i], planes[area + i], planes[2 * area + i]] = [r, g, b];
    }
    return planes;
  };

  /* What evaluation makes of a picture: bytes [C, S, S]. */
  const fromPicture = (image, { view, image_size: size, channels }) =>
    toPlanes(resize(image, viewBox(view, image.width, image.height, size), size), channels);

  /* From -1 to 1, as all models here take them. */
  const toTensor = (planes) => Float32Array.from(planes, (byte) => Math.fround(Math.fround(byte / 127.5) - 1));

  const toImageData = (planes, size, shade = (r, g, b) => [r, g, b]) => {
    const area = size * size;
    const image = new ImageData(size, size);
    for (let i = 0; i < area; i += 1) {
      const color = planes.length === area ? [planes[i], planes[i], planes[i]]
        : [planes[i], planes[area + i], planes[2 * area + i]];
      image.data.set([...shade(...color), 255], 4 * i);
    }
    return image;
  };

  /* A canvas of the picture's own size, to be drawn larger. */
  const toCanvas = (planes, size, shade) => {
    const canvas = document.createElement("canvas");
    canvas.width = size;
    canvas.height = size;
    canvas.getContext("2d").putImageData(toImageData(planes, size, shade), 0, 0);
    return canvas;
  };

  return { fromPicture, toCanvas, toTensor, viewBox };
})();

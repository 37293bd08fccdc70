/* A place to draw on: lines of points, handed over while they grow. */
const Pad = (() => {
  "use strict";
  const pad = document.getElementById("pad");
  const hint = document.getElementById("pad-hint");
  const clearing = document.getElementById("clear");
  const NEAR = 4; // pixels; nearer points are left out
  const PEN = 40;
  let lines = [];
  let line = null;
  let isWaiting = false;

  const pointOf = (event) => {
    const box = pad.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * pad.width, ((event.clientY - box.top) / box.height) * pad.height];
  };

  const draw = () => {
    const pen = pad.getContext("2d");
    pen.clearRect(0, 0, pad.width, pad.height);
    pen.lineWidth = PEN;
    pen.lineCap = "round";
    pen.lineJoin = "round";
    pen.strokeStyle = getComputedStyle(pad).color;
    for (const points of lines) {
      pen.beginPath();
      pen.moveTo(...points[0]);
      (points.length > 1 ? points : [points[0], points[0]]).forEach((point) => pen.lineTo(...point));
      pen.stroke();
    }
    hint.hidden = lines.length > 0;
    clearing.disabled = lines.length === 0;
  };

  const clear = () => {
    lines = [];
    line = null;
    draw();
  };

  const start = (onLines) => {
    const handOver = () => {
      draw();
      if (isWaiting) return;
      isWaiting = true;
      requestAnimationFrame(() => {
        isWaiting = false;
        if (lines.length) onLines(lines);
      });
    };
    pad.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      pad.setPointerCapture(event.pointerId);
      line = [pointOf(event)];
      lines.push(line);
      handOver();
    });
    pad.addEventListener("pointermove", (event) => {
      if (!line) return;
      for (const moved of event.getCoalescedEvents?.() ?? [event]) {
        const [x, y] = pointOf(moved);
        const [lastX, lastY] = line.at(-1);
        if (Math.hypot(x - lastX, y - lastY) >= NEAR) line.push([x, y]);
      }
      handOver();
    });
    for (const end of ["pointerup", "pointercancel"]) pad.addEventListener(end, () => { line = null; });
    clearing.hidden = false;
    clearing.addEventListener("click", clear);
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    draw();
  };

  return { clear, start };
})();

"use strict";
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isTouch = window.matchMedia("(pointer: coarse)").matches;
  let chosen = null; // "light" or "dark" once the reader has chosen

  const probe = document.head.appendChild(document.createElement("span"));
  /* The color that a variable of the style sheet means in this theme. */
  const value = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };

  /* Replace names of the style sheet's variables, where a color belongs, by their colors. */
  const resolve = (item) => {
    if (Array.isArray(item)) return item; // numbers and texts, never colors
    if (!item || typeof item !== "object") return item;
    return Object.fromEntries(Object.entries(item).map(([key, inner]) =>
      [key, /color$/.test(key) && String(inner).startsWith("--") ? value(inner) : resolve(inner)]));
  };

  const FULL = 640, HALF = 440; // widths at which charts are drawn for paper, then scaled to it
  const TOOLS = [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]]; // few enough to stand beside the title
  const LETTER = 7, BESIDE = 70; // pixels: of a letter below a chart, and beside its categories

  /* Names of categories that do not fit side by side stand at an angle, where lines would overlap. */
  const oneLine = (given, width) => {
    const names = given?.ticktext ?? [];
    const longest = Math.max(0, ...names.flatMap((name) => name.split("<br>")).map((line) => line.length));
    if (names.length * longest * LETTER + BESIDE <= width) return given;
    return { ...given, ticktext: names.map((name) => name.replaceAll("<br>", " ")) };
  };

  const axis = (given) => ({
    gridcolor: value("--rule"), linecolor: value("--rule"), zeroline: false, automargin: true,
    ...given, title: { ...given?.title, font: { size: 12, color: value("--muted") } },
  });

  const draw = (chart, size) => {
    const plot = chart.querySelector(".plot");
    if (!plot.checkVisibility()) return; // folded up or in a hidden panel: drawn when it is shown
    const spec = JSON.parse(chart.querySelector('script[type="application/json"]').textContent);
    const scale = [[0, value("--heat-low")], [1, value("--heat-high")]];
    const data = spec.data.map((trace) =>
      resolve(trace.colorscale === "heat" ? { ...trace, colorscale: scale } : trace));
    const xaxis = oneLine(spec.layout.xaxis, size?.width ?? plot.clientWidth);
    const layout = {
      ...spec.layout, xaxis: axis(xaxis), yaxis: axis(spec.layout.yaxis),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: value("--ink") },
      hoverlabel: { bgcolor: value("--surface"), bordercolor: value("--rule"), font: { color: value("--ink") } },
      margin: { l: 8, r: 12, t: 8, b: 8 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: value("--muted"), activecolor: value("--ink") },
      dragmode: isTouch ? false : "zoom", autosize: !size, ...size,
    };
    Plotly.react(plot, data, layout, {
      responsive: true, displaylogo: false, displayModeBar: isTouch ? false : "hover", modeBarButtons: TOOLS,
    });
    plot.querySelectorAll(".main-svg").forEach((svg) => {
      if (size) svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
      else svg.removeAttribute("viewBox");
    });
    plot.style.aspectRatio = size ? `${size.width} / ${size.height}` : "";
  };

  let isOnPaper = false;
  let unfolded = []; // parts that are open for paper only
  let waiting = []; // drawn one by one, so that a long page answers meanwhile

  const drawNext = () => {
    const chart = waiting.shift();
    if (chart) draw(chart);
    document.body.ariaBusy = String(waiting.length > 0);
    if (waiting.length) setTimeout(drawNext);
  };
  const distance = (chart) => {
    const { top, bottom } = chart.getBoundingClientRect();
    return Math.max(top - innerHeight, -bottom, 0);
  };
  const drawIn = (part) => {
    const isIdle = waiting.length === 0;
    const charts = new Set([...part.querySelectorAll(".chart"), ...waiting]);
    waiting = [...charts].map((chart) => [distance(chart), chart])
      .sort(([a], [b]) => a - b).map(([, chart]) => chart);
    if (isIdle) drawNext();
  };

  /* On paper there are two columns of a width that no script knows, and nothing may wait. */
  const drawForPaper = () => {
    root.dataset.theme = "light";
    waiting = [];
    isOnPaper = true;
    unfolded = [...document.querySelectorAll("details.printed:not([open])")];
    unfolded.forEach((part) => { part.open = true; });
    document.querySelectorAll(".chart").forEach((chart) => {
      const isAlone = chart.parentElement.children.length === 1;
      const height = parseFloat(chart.querySelector(".plot").style.height);
      draw(chart, { width: isAlone ? FULL : HALF, height });
    });
  };

  const backToScreen = () => {
    isOnPaper = false;
    unfolded.forEach((part) => {
      part.open = false;
      part.querySelectorAll(".js-plotly-plot").forEach((plot) => {
        Plotly.purge(plot); // it has the size of paper; drawn again when it is opened
        plot.style.aspectRatio = "";
      });
    });
    unfolded = [];
    applyTheme(currentTheme());
  };

  const applyTheme = (theme) => {
    root.dataset.theme = theme;
    drawIn(document);
  };
  const currentTheme = () => chosen ?? (system.matches ? "dark" : "light");

  document.getElementById("theme").addEventListener("click", () => {
    chosen = currentTheme() === "dark" ? "light" : "dark";
    applyTheme(chosen);
  });
  system.addEventListener("change", () => applyTheme(currentTheme()));
  window.addEventListener("beforeprint", drawForPaper);
  window.addEventListener("afterprint", backToScreen);

  document.querySelectorAll(".tabs").forEach((tabs) => {
    const buttons = [...tabs.querySelectorAll(":scope > .tabbar > button")];
    const panels = [...tabs.querySelectorAll(":scope > .panel")];
    buttons.forEach((button, index) => button.addEventListener("click", () => {
      buttons.forEach((other, i) => other.setAttribute("aria-selected", String(i === index)));
      panels.forEach((panel, i) => { panel.hidden = i !== index; });
      drawIn(tabs);
    }));
  });

  document.querySelectorAll("details").forEach((part) =>
    part.addEventListener("toggle", () => { if (part.open && !isOnPaper) drawIn(part); }));

  /* A link to a folded section opens it. */
  const openTarget = () => {
    const part = document.querySelector(":target > details");
    if (!part) return;
    part.open = true;
    part.scrollIntoView();
  };
  window.addEventListener("hashchange", openTarget);

  const contents = document.getElementById("contents");
  const links = new Map([...contents.querySelectorAll("a")].map((link) =>
    [document.getElementById(link.hash.slice(1)), link]));
  contents.addEventListener("click", (event) => {
    if (event.target.closest("a") && contents.matches(":popover-open")) contents.hidePopover();
  });
  const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting) return;
    links.forEach((link, part) => { link.ariaCurrent = String(part === entry.target); });
  }), { rootMargin: "-20% 0px -75% 0px" });
  links.forEach((_, part) => watcher.observe(part));

  applyTheme(currentTheme());
  openTarget();
})();

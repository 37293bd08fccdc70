"use strict";
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isTouch = window.matchMedia("(pointer: coarse)").matches;
  let chosen = null; // "light" or "dark" once the reader has chosen

  const probe = document.head.appendChild(document.createElement("span"));
  /* The colour that a variable of the style sheet means in this theme. */
  const value = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };

  /* Replace names of the style sheet's variables by what they mean in this theme. */
  const resolve = (item) => {
    if (typeof item === "string") return item.startsWith("--") ? value(item) : item;
    if (Array.isArray(item)) return item.map(resolve);
    if (item && typeof item === "object")
      return Object.fromEntries(Object.entries(item).map(([key, inner]) => [key, resolve(inner)]));
    return item;
  };

  const axis = (given) => ({
    gridcolor: value("--rule"), linecolor: value("--rule"), zeroline: false, automargin: true,
    ...given, title: { ...given?.title, font: { size: 12, color: value("--muted") } },
  });

  const draw = (chart) => {
    const plot = chart.querySelector(".plot");
    if (!plot.offsetParent) return; // in a hidden panel: drawn when it is shown
    const spec = JSON.parse(chart.querySelector('script[type="application/json"]').textContent);
    const scale = [[0, value("--heat-low")], [1, value("--heat-high")]];
    const data = spec.data.map((trace) =>
      resolve(trace.colorscale === "heat" ? { ...trace, colorscale: scale } : trace));
    const layout = {
      ...spec.layout, xaxis: axis(spec.layout.xaxis), yaxis: axis(spec.layout.yaxis),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: value("--ink") },
      hoverlabel: { bgcolor: value("--surface"), bordercolor: value("--rule"), font: { color: value("--ink") } },
      margin: { l: 8, r: 12, t: 8, b: 8 },
      legend: { orientation: "h", y: -0.22, yanchor: "top", x: 0, xanchor: "left" },
      dragmode: isTouch ? false : "zoom",
    };
    Plotly.react(plot, data, layout, { responsive: true, displaylogo: false, displayModeBar: "hover" });
  };

  const drawAll = () => document.querySelectorAll(".chart").forEach(draw);

  const applyTheme = (theme) => {
    root.dataset.theme = theme;
    drawAll();
  };
  const currentTheme = () => chosen ?? (system.matches ? "dark" : "light");

  document.getElementById("theme").addEventListener("click", () => {
    chosen = currentTheme() === "dark" ? "light" : "dark";
    applyTheme(chosen);
  });
  system.addEventListener("change", () => applyTheme(currentTheme()));
  window.addEventListener("beforeprint", () => applyTheme("light"));
  window.addEventListener("afterprint", () => applyTheme(currentTheme()));

  document.querySelectorAll(".tabs").forEach((tabs) => {
    const buttons = [...tabs.querySelectorAll(":scope > .tabbar > button")];
    const panels = [...tabs.querySelectorAll(":scope > .panel")];
    buttons.forEach((button, index) => button.addEventListener("click", () => {
      buttons.forEach((other, i) => other.setAttribute("aria-selected", String(i === index)));
      panels.forEach((panel, i) => { panel.hidden = i !== index; });
      drawAll();
    }));
  });

  applyTheme(currentTheme());
})();

/* What the page says of itself, and its colors. */
const Theme = (() => {
  "use strict";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme ?? (system.matches ? "dark" : "light");

  const start = () => document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
  });

  return { start };
})();

const Notes = (() => {
  "use strict";
  const { make, percent } = Answers;
  const COUNTS = ["No models", "One model", "Two models", "Three models", "Four models"];

  const add = (title, text, ...others) => {
    const said = make("dd", "", text);
    said.append(...others);
    document.getElementById("notes").append(make("dt", "", title), said);
  };

  const models = ({ models: all, differences }) => {
    const facts = all.map(({ name, parameters, top1 }) =>
      `${name}: ${parameters.toLocaleString("en")} parameters${top1 === null ? "" : `, ${percent(top1, 2)} top-1 on validation images`}.`);
    const same = differences.length ? `They differ in more than attention: ${differences.join(", ")}.`
      : "They are the same but for attention.";
    return [...facts, ...(all.length > 1 ? [same] : [])].join(" ");
  };

  const times = ({ models: [{ tokens, attention_share: share }] }) =>
    `WebAssembly on one thread of your processor, one image at a time, models in turns. What is timed gives the answer `
    + `alone, without the maps. With ${tokens} tokens attention is ${percent(share)} of the arithmetic`
    + `${share < 0.2 ? ", so expect little difference" : ""}. Zeros are computed like all weights. `
    + "Flashpoint's own kernels are for GPUs and are not in this page. ";

  const write = (facts) => {
    const many = facts.models.length;
    document.getElementById("lead").textContent = `${COUNTS[many]} ${many > 1 ? "look" : "looks"} at one picture, inside this page. `
      + "Nothing that you draw or choose leaves it.";
    add(many > 1 ? "Models" : "Model", models(facts));
    add("Maps", "A map shows how much of a head's weight each patch gets, from zero to the head's largest. "
      + "Layer and head stand below it, and the share of all its weights that are exactly zero, over all queries.");
    add("Zeros", "A weight is counted only if it is exactly zero. Relu makes such weights of all scores below zero; softmax makes none but those that are too small for a 32-bit number.");
    add("Times", times(facts), document.getElementById("measure"));
    if (facts.is_drawn) {
      add("Drawing", "Lines become a bitmap of 32 x 32, upright and with the size and the ink of the data set's digits. "
        + "Its blocks of 4 x 4 are counted, which gives 8 x 8 numbers from 0 to 16, as the data were made.");
    } else {
      add("Pictures", `Resized to ${facts.image_size} x ${facts.image_size} as in validation. A model knows its ${facts.classes.length} classes only.`);
    }
    document.getElementById("made").textContent =
      `Made by flashpoint page ${facts.version}. Models run in ONNX Runtime Web ${facts.runtime}, \u00a9 Microsoft Corporation, MIT License.`;
  };

  return { write };
})();

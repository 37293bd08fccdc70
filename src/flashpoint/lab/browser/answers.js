/* One card for each model: its class, how sure it is, how many weights are zero, how long it takes. */
const Answers = (() => {
  "use strict";
  const MOST_BARS = 10;

  const make = (name, className, text = "") => {
    const node = document.createElement(name);
    if (className) node.className = className;
    node.textContent = text;
    return node;
  };

  const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;

  /* A share of zeros; all and none are said only where it is all or none. */
  const zeroShare = (zeros, count) => {
    if (zeros === 0) return "0%";
    if (zeros === count) return "100%";
    return percent(Math.min(Math.max(zeros / count, 0.001), 0.999));
  };

  const shares = (logits, loss) => {
    if (loss === "sigmoid") return Array.from(logits, (x) => 1 / (1 + Math.exp(-x)));
    const most = Math.max(...logits);
    const sizes = Array.from(logits, (x) => Math.exp(x - most));
    const sum = sizes.reduce((a, b) => a + b, 0);
    return sizes.map((size) => size / sum);
  };

  const card = (model, number) => {
    const node = make("article", "card");
    node.style.setProperty("--model", `var(--series-${number})`);
    const parts = {};
    const add = (parent, key, name, className) => {
      parts[key] = parent.appendChild(make(name, className));
      return parts[key];
    };
    const head = node.appendChild(make("h2", "name", model.name));
    if (model.attention !== model.name) head.append(make("span", "kind", model.attention));
    const said = node.appendChild(make("p", "said"));
    add(said, "answer", "strong", "answer");
    add(said, "sure", "span", "sure");
    add(node, "bars", "div", "bars");
    const numbers = node.appendChild(make("div", "numbers"));
    for (const [key, label] of [["zeros", "of its attention weights are exactly zero"], ["time", "for an answer"]]) {
      const cell = numbers.appendChild(make("p", key));
      add(cell, key, "strong", "value");
      parts[`${key}Label`] = cell.appendChild(make("span", "label", label));
    }
    parts.time.textContent = "\u2026";
    return { node, parts };
  };

  const showBars = (bars, found, classes) => {
    const order = found.map((_, i) => i);
    if (classes.length > MOST_BARS) order.sort((a, b) => found[b] - found[a]).splice(MOST_BARS / 2);
    const best = found.indexOf(Math.max(...found));
    bars.replaceChildren(...order.flatMap((i) => {
      const bar = make("span", i === best ? "bar best" : "bar");
      bar.style.setProperty("--share", String(found[i]));
      return [make("span", "class", classes[i]), bar, make("span", "share", percent(found[i], 0))];
    }));
  };

  const show = ({ parts }, model, { logits, zeros, count }, classes) => {
    const found = shares(logits, model.loss);
    const best = found.indexOf(Math.max(...found));
    parts.answer.textContent = classes[best] ?? "nothing";
    parts.answer.classList.toggle("long", parts.answer.textContent.length > 2);
    parts.sure.textContent = found[best] < 0.9995 ? `${percent(found[best])} sure` : "over 99.9% sure";
    showBars(parts.bars, found, classes);
    parts.zeros.textContent = zeroShare(zeros, count);
    parts.zerosLabel.textContent = `of its ${count.toLocaleString("en")} attention weights are exactly zero`;
  };

  const showTime = ({ parts }, { median, low, high }) => {
    parts.time.textContent = `${median.toPrecision(3)} ms`;
    parts.timeLabel.textContent = `for an answer, the median; p20 to p80 ${low.toPrecision(2)} to ${high.toPrecision(2)}`;
  };

  return { card, make, percent, show, showTime, zeroShare };
})();

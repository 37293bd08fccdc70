/* The page: a picture comes in, every model answers, and its attention is drawn for whoever asks. */
(() => {
  "use strict";
  const { make } = Answers;
  const byId = (id) => document.getElementById(id);
  const facts = Packed.facts();
  const { grid, image_size: size } = facts;
  const firstPatch = facts.has_class_token ? 1 : 0; // among the tokens
  const middle = Math.floor(grid / 2) * (grid + 1); // it asks first, unless a class token does
  const state = { planes: null, found: [], asked: 0, query: middle, patch: middle };
  if (facts.has_class_token) Object.assign(state, { query: 0, patch: null });
  const cards = facts.models.map(Answers.card);
  const models = [];
  const cells = []; // by model, layer and head

  /* ---- attention ---- */

  const countZeros = (weights, offset, length) => {
    let zeros = 0;
    for (let i = offset; i < offset + length; i += 1) if (weights[i] === 0) zeros += 1;
    return zeros;
  };

  const panelOf = (model, number) => {
    const panel = make("figure", "panel");
    panel.style.setProperty("--model", `var(--series-${number})`);
    panel.append(make("figcaption", "name", model.name));
    const table = panel.appendChild(make("div", "heads"));
    table.style.setProperty("--heads", String(model.heads));
    for (let layer = 0; layer < model.layers; layer += 1) {
      for (let head = 0; head < model.heads; head += 1) {
        const cell = table.appendChild(make("div", "head"));
        const canvas = cell.appendChild(make("canvas"));
        canvas.setAttribute("role", "img");
        const label = cell.appendChild(make("span", "label"));
        canvas.addEventListener("click", (event) => ask(patchAt(event)));
        cells.push({ number, layer, head, canvas, label });
      }
    }
    return panel;
  };

  const drawMaps = () => {
    const picture = Pixels.toCanvas(state.planes, size, Heat.dim);
    for (const { number, layer, head, canvas, label } of cells) {
      const { tokens, heads } = facts.models[number];
      const offset = (layer * heads + head) * tokens * tokens;
      const { weights } = state.found[number];
      const sizes = Heat.row(weights, { tokens, offset }, state.query).subarray(firstPatch);
      const zeros = Answers.zeroShare(countZeros(weights, offset, tokens * tokens), tokens * tokens);
      Heat.draw(canvas, picture, sizes, grid, state.query === "all" ? null : state.patch);
      const name = `layer ${layer + 1}, head ${head + 1}`;
      label.replaceChildren(`${layer + 1}.${head + 1}`, make("span", "zero", zeros));
      canvas.ariaLabel = `${facts.models[number].name}, ${name}: ${zeros} of its weights are zero`;
      canvas.title = `${name}: ${zeros} of its weights are exactly zero`;
    }
  };

  const drawSeen = () => {
    const canvas = byId("seen");
    const side = Math.max(8, Math.round(384 / size)) * size;
    canvas.width = side;
    canvas.height = side;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(Pixels.toCanvas(state.planes, size), 0, 0, side, side);
    if (state.patch === null) return;
    const patch = side / grid;
    pen.lineWidth = Math.max(3, side / 100);
    pen.strokeStyle = "#4ec4d4";
    pen.strokeRect((state.patch % grid) * patch, Math.floor(state.patch / grid) * patch, patch, patch);
  };

  /* ---- who asks ---- */

  const patchAt = (event) => {
    const box = event.target.getBoundingClientRect();
    const place = (at, from, length) => Math.min(grid - 1, Math.max(0, Math.floor(((at - from) / length) * grid)));
    return place(event.clientY, box.top, box.height) * grid + place(event.clientX, box.left, box.width);
  };

  const choices = [["all", "All queries"], ...(facts.has_class_token ? [[0, "Class token"]] : [])];

  const sayQuery = () => {
    const [row, column] = [Math.floor(state.patch / grid) + 1, (state.patch % grid) + 1];
    const says = state.patch !== null ? `One query: the patch in row ${row}, column ${column}.`
      : state.query === "all" ? "The mean over all queries: how much attention each patch receives."
        : "One query: the class token, from which the answer is read.";
    byId("query-says").textContent = says;
    byId("seen").ariaLabel = `What the models see. ${says}`;
    [...byId("queries").children].forEach((button, i) =>
      button.setAttribute("aria-pressed", String(state.patch === null && choices[i][0] === state.query)));
  };

  const ask = (patch, query = "all") => {
    state.patch = patch;
    state.query = patch === null ? query : patch + firstPatch;
    sayQuery();
    drawSeen();
    drawMaps();
  };

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  byId("seen").addEventListener("keydown", (event) => {
    if (event.key === "Escape") ask(null, choices.at(-1)[0]);
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const limit = (x) => Math.min(grid - 1, Math.max(0, x));
    const [x, y] = state.patch === null ? [0, 0]
      : [limit((state.patch % grid) + step[0]), limit(Math.floor(state.patch / grid) + step[1])];
    ask(y * grid + x);
  });
  byId("seen").addEventListener("click", (event) => ask(patchAt(event)));

  /* ---- pictures ---- */

  /* Of pictures that come while models think, the last one is looked at. */
  const see = async (planes) => {
    state.asked += 1;
    const turn = state.asked;
    const found = [];
    for (const model of models) {
      if (turn !== state.asked) return;
      found.push(await Network.look(model, planes, facts));
    }
    if (turn !== state.asked) return;
    Object.assign(state, { planes, found });
    found.forEach(({ logits, weights }, i) => {
      const count = weights.length;
      Answers.show(cards[i], facts.models[i], { logits, zeros: countZeros(weights, 0, count), count }, facts.classes);
    });
    drawSeen();
    drawMaps();
  };

  const seeFile = async (file) => {
    try {
      const bitmap = await createImageBitmap(file);
      const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
      const pen = canvas.getContext("2d");
      pen.drawImage(bitmap, 0, 0);
      press(null);
      await see(Pixels.fromPicture(pen.getImageData(0, 0, bitmap.width, bitmap.height), facts));
      say("input-title", "Choose a picture");
    } catch {
      say("input-title", `${file.name} is no picture that this browser reads`);
    }
  };

  const samples = facts.samples.map(({ name, pixels }) => {
    const planes = Packed.fromBase64(pixels);
    const button = make("button");
    button.type = "button";
    button.ariaLabel = `A picture of class ${name}`;
    button.title = name;
    button.append(Pixels.toCanvas(planes, size));
    button.addEventListener("click", () => {
      Pad.clear();
      press(button);
      see(planes);
    });
    return { button, planes };
  });
  const press = (chosen) => samples.forEach(({ button }) => button.setAttribute("aria-pressed", String(button === chosen)));

  const receiveFiles = () => {
    byId("file").addEventListener("change", (event) => event.target.files.length && seeFile(event.target.files[0]));
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      byId("dropping").classList.add("over");
    });
    for (const end of ["dragleave", "drop"]) {
      document.addEventListener(end, () => byId("dropping").classList.remove("over"));
    }
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) seeFile(event.dataTransfer.files[0]);
    });
    document.addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) seeFile(event.clipboardData.files[0]);
    });
  };

  /* ---- time ---- */

  const measure = async () => {
    const button = byId("measure");
    button.disabled = true;
    document.body.dataset.timing = "running";
    const times = await Network.time(models, state.planes, facts);
    times.forEach((time, i) => Answers.showTime(cards[i], time));
    document.body.dataset.timing = "done";
    button.disabled = false;
  };

  /* ---- the page itself ---- */

  const say = (id, text) => { byId(id).textContent = text; };

  const build = () => {
    say("title", facts.title);
    say("input-title", facts.is_drawn ? "Draw a digit" : "Choose a picture");
    Notes.write(facts);
    byId("scale").style.background = Heat.scale;
    byId("answers").append(...cards.map(({ node }) => node));
    byId("panels").append(...facts.models.map(panelOf));
    byId("samples").append(...samples.map(({ button }) => button));
    choices.forEach(([query, text]) => {
      const button = byId("queries").appendChild(make("button", "", text));
      button.type = "button";
      button.addEventListener("click", () => ask(null, query));
    });
    byId("measure").addEventListener("click", measure);
    byId(facts.is_drawn ? "drawing" : "dropping").hidden = false;
    if (facts.is_drawn) {
      Pad.start((lines) => {
        press(null);
        see(Digits.fromLines(lines));
      });
    } else {
      receiveFiles();
    }
    Theme.start();
  };

  const start = async () => {
    build();
    await Network.start();
    for (const number of facts.models.keys()) models.push(await Network.open(number));
    press(samples[0].button);
    await see(samples[0].planes);
    sayQuery();
    document.body.ariaBusy = "false";
    await measure();
  };

  start().catch((error) => {
    say("lead", `This browser cannot run the models: ${error.message}`);
    document.body.ariaBusy = "false";
    throw error;
  });
})();

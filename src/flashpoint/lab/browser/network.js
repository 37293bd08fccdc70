/* Models in onnxruntime: WebAssembly on one thread, so that the page needs nothing from whoever serves it. */
const Network = (() => {
  "use strict";
  const WARM_UP = 3;
  const ROUNDS = 25;
  const SAMPLE_MS = 8; // the least that is timed at once; browsers' clocks are coarse
  const BUDGET_MS = 4000;

  /* One call at a time, in order. */
  let last = Promise.resolve();
  const inTurn = (task) => {
    last = last.then(task, task);
    return last;
  };

  const start = async () => {
    const [loader, program] = await Promise.all([Packed.binary("loader"), Packed.binary("program")]);
    ort.env.logLevel = "error";
    ort.env.wasm.numThreads = 1;
    const address = (content, type) => URL.createObjectURL(new Blob([content], { type }));
    ort.env.wasm.wasmPaths = { mjs: address(loader, "text/javascript"), wasm: address(program, "application/wasm") };
  };

  const open = async (number) => {
    const [logits, maps, tensors] = await Promise.all(
      ["logits", "maps", "tensors"].map((name) => Packed.binary(`${name}-${number}`)));
    const options = {
      executionProviders: ["wasm"], logSeverityLevel: 3,
      externalData: tensors.length ? [{ path: "tensors", data: tensors }] : [],
    };
    const whole = await ort.InferenceSession.create(maps, options);
    const short = await ort.InferenceSession.create(logits, options);
    return { whole, short };
  };

  const feed = (session, planes, { image_size: size, channels }) =>
    ({ [session.inputNames[0]]: new ort.Tensor("float32", Pixels.toTensor(planes), [1, channels, size, size]) });

  /* Logits and weights of one image. */
  const look = (model, planes, facts) => inTurn(async () => {
    const [logits, weights] = model.whole.outputNames;
    const found = await model.whole.run(feed(model.whole, planes, facts));
    return { logits: found[logits].data, weights: found[weights].data };
  });

  const run = async (model, input, times) => {
    const before = performance.now();
    for (let i = 0; i < times; i += 1) await model.short.run(input);
    return (performance.now() - before) / times;
  };

  const quantile = (sorted, share) => sorted[Math.round(share * (sorted.length - 1))];

  /* Milliseconds of an answer, for each model: in turns, so that whatever else the processor does meets all alike. */
  const time = async (models, planes, facts) => {
    const inputs = models.map((model) => feed(model.short, planes, facts));
    const all = models.map((_, i) => i);
    const samples = all.map(() => []);
    const repeats = [];
    for (const i of all) {
      await inTurn(() => run(models[i], inputs[i], WARM_UP));
      const tries = [];
      for (let j = 0; j < WARM_UP; j += 1) tries.push(await inTurn(() => run(models[i], inputs[i], WARM_UP)));
      repeats.push(Math.ceil(SAMPLE_MS / Math.max(Math.min(...tries), 0.02)));
    }
    const start = performance.now();
    for (let round = 0; round < ROUNDS && (round < 3 || performance.now() - start < BUDGET_MS); round += 1) {
      for (const i of round % 2 ? [...all].reverse() : all) {
        samples[i].push(await inTurn(() => run(models[i], inputs[i], repeats[i])));
        await new Promise((resume) => setTimeout(resume)); // the page answers meanwhile
      }
    }
    return all.map((i) => {
      const sorted = samples[i].sort((a, b) => a - b);
      return { median: quantile(sorted, 0.5), low: quantile(sorted, 0.2), high: quantile(sorted, 0.8) };
    });
  };

  return { look, open, start, time };
})();

// The page: what the user does on the one side, what the server answers on the other.

import { bars, curves, distribution, make, noBars } from "./charts.js";
import { Pad } from "./drawing.js";
import { KeyNeeded, Latest, ServerGone, ask, key } from "./server.js";
import * as words from "./words.js";

const byId = id => document.getElementById(id);
const KINDS = ["aleatoric", "epistemic"];
const MOST = 24; // images that are compared
const THUMB = 11; // half of a slider's thumb, where its range begins
const degrees = value => `${Math.round(value)}°`.replace("-", "−");
const SLIDERS = {
  noise: { low: 0, high: .5, points: 21, written: value => value.toFixed(2), named: value => `γ = ${Number(value.toFixed(3))}` },
  rotation: { low: -180, high: 180, points: 25, written: degrees, named: degrees },
};
const NAMES = Object.keys(SLIDERS);

let model = null;
let current = null; // the entry of the history that is looked at
let entries = [];
let seed = 0;

const pad = new Pad(byId("pad"), drawn);
const predictor = new Latest(predict);
const curver = new Latest(respond);

start();

// ---- the server ----

async function start() {
  try {
    const described = await ask("/model", { busy });
    if (described.api_key && !key.get()) throw new KeyNeeded();
    model = described;
  } catch (error) { return tell(error) }
  quiet();
  introduce();
  if (model.examples.length && !current) choose(model.examples[0]);
}

/** How the network is asked, the same for the answer and for its curves. */
function way() {
  const [method, samples] = byId("way").value.split(":");
  return { method, seed, ...(samples && { samples: Number(samples) }) };
}

async function predict(entry, signal) {
  const { version, noise, rotation } = entry, asked = way();
  try {
    const wanted = { per_class: true, preview: true, draws: asked.method === "weights" };
    if (model.validation) wanted.conformal = model.validation.coverage;
    const body = { ...asked, ...wanted, images: [entry.source], noise, rotation };
    const answer = await ask("/predict", { body, signal, busy });
    if (version < entry.shown) return;
    [entry.prediction] = answer.predictions;
    entry.shown = version;
    entry.asked = { method: answer.method, samples: answer.samples, warning: answer.warning };
    // From here on the small image will do: a photograph need not be sent again for every move of a slider.
    if (!noise && !rotation && version === entry.version) entry.source = entry.prediction.preview;
    quiet();
    list();
    if (entry === current) { show(); later(entry) }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell(error);
    // No number may stand beside an image that it does not belong to.
    if (entry === current && !entry.prediction) showNothing();
    else if (entry === current) byId("answer").classList.add("old");
  }
  if (entry === current && entry.version === version) waits(false);
}

function waits(is) { byId("answer").setAttribute("aria-busy", is) }

let waiting;
function later(entry) {
  clearTimeout(waiting);
  if (!predictor.waiting) waiting = setTimeout(() => curver.ask(entry, true), 150);
}

/** The places of a slider's curve; both curves together must fit into one request. */
function grid({ low, high, points }) {
  const length = Math.min(points, Math.floor(model.max_images / 2));
  return Array.from({ length }, (_, i) => Number((low + (high - low) * i / (length - 1)).toFixed(4)));
}

/** What a slider's curve depends on: everything but its own value. */
const basis = (entry, name) =>
  JSON.stringify([entry.picture, way(), NAMES.filter(other => other !== name).map(other => entry[other])]);

/** The curves of the sliders that are out of date, in one request. */
async function respond(entry, signal) {
  const wanted = NAMES.filter(name => entry.curves[name]?.basis !== basis(entry, name));
  if (!wanted.length || entry !== current || model.max_images < 4) return;
  const bases = wanted.map(name => basis(entry, name));
  const values = wanted.map(name => grid(SLIDERS[name]));
  const body = { ...way(), images: [entry.source] };
  for (const name of NAMES)
    body[name] = wanted.flatMap((other, i) => other === name ? values[i] : values[i].map(() => entry[name]));
  try {
    const { predictions } = await ask("/predict", { body, signal, busy });
    wanted.forEach((name, i) => {
      const points = values[i].map(at => ({ at, ...predictions.shift() }));
      entry.curves[name] = { basis: bases[i], points };
    });
    quiet();
    if (entry === current) showCurves();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell(error);
  }
}

// ---- what goes wrong ----

function tell(error) {
  const needed = error instanceof KeyNeeded;
  byId("key").hidden = !needed;
  byId("notice").hidden = needed && !key.get();
  byId("notice").querySelector("p").textContent = error.message || "The server wants a key.";
  byId("again").hidden = !(error instanceof ServerGone);
  if (!model && needed) byId("about").textContent = "The model is shown to those who have its key.";
  else if (!model) byId("about").textContent = "The model could not be reached.";
  if (needed) byId("key-value").focus();
}

function quiet() { byId("notice").hidden = byId("key").hidden = true }

function busy(seconds) {
  tell(new Error(`The server is busy. Asking again in ${Math.ceil(seconds)} s.`));
}

byId("again").addEventListener("click", () => { if (model && current) refresh(); else start() });
byId("key").addEventListener("submit", event => {
  event.preventDefault();
  key.set(byId("key-value").value.trim());
  byId("key-value").value = "";
  if (model && current) refresh(); else start();
});

// ---- images come in ----

/** Look at a new image; `strokes` are those of a drawing. */
function begin(source, { name, truth = null, strokes = null }) {
  const entry = {
    name, truth, source, strokes, noise: 0, rotation: 0, // what is asked
    picture: 0, version: 0, shown: -1, // drawings and requests so far, and which of these is answered
    prediction: null, curves: {}, card: null,
  };
  entries = [entry, ...entries].slice(0, MOST);
  return entry;
}

function open(entry) {
  current = entry;
  for (const name of NAMES) slide(name, entry[name]);
  if (!entry.prediction || entry.shown < entry.version) return refresh(true);
  waits(false);
  show();
  list();
  later(entry);
}

/** Ask anew, because the image, a slider or the way of asking has changed; `urgent` if what is under way is of no use. */
function refresh(urgent = false) {
  current.version++;
  waits(true);
  predictor.ask(current, urgent);
}

function drawn() {
  if (pad.isEmpty) return clear();
  const strokes = pad.strokes.map(stroke => [...stroke]), source = pad.image();
  const fresh = !current?.strokes;
  if (fresh) {
    current = begin(source, { name: "drawing", strokes });
    for (const name of NAMES) slide(name, 0);
  }
  Object.assign(current, { strokes, source, picture: current.picture + 1 });
  buttons();
  refresh(fresh);
}

function clear() {
  current = null;
  pad.show(null);
  clearTimeout(waiting);
  for (const name of NAMES) slide(name, 0);
  showNothing();
  list();
}

function choose(example) {
  pad.show(example.image);
  open(begin(example.image, { name: `sample ${example.name}`, truth: example.truth }));
}

const read = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(new Error(`${file.name} could not be read.`));
  reader.readAsDataURL(file);
});

/** What need not be sent to be refused. */
function refuse({ name, type, size }) {
  if (type && !type.startsWith("image/"))
    throw new Error(`${name} is not an image: give a PNG, JPEG, WebP, BMP or GIF file.`);
  const room = .74 * model.max_body_bytes, megabytes = bytes => `${(bytes / 1e6).toFixed(1)} MB`; // base64 adds a third
  if (size > room) throw new Error(`${name} has ${megabytes(size)}, but this server takes at most ${megabytes(room)}.`);
}

/** Look at files one after the other; what went wrong with any of them is told at the end. */
async function take(files) {
  const taken = [...files].slice(0, MOST), wrong = [];
  if (taken.length < files.length) wrong.push(`Only the first ${MOST} of ${files.length} files are shown.`);
  for (const file of taken) {
    try {
      refuse(file);
      const source = await read(file), entry = begin(source, { name: file.name || "pasted image" });
      current = entry;
      for (const name of NAMES) slide(name, 0);
      waits(true);
      const readable = await pad.show(source);
      await predict(entry);
      if (!entry.prediction) {
        forget(entry);
        wrong.push(`${files.length > 1 ? `${entry.name}: ` : ""}${byId("notice").querySelector("p").textContent}`);
      } else if (!readable && entry === current) pad.show(entry.source);
    } catch (error) { tell(error); wrong.push(error.message) }
  }
  if (wrong.length && files.length > 1) tell(new Error(wrong.join(" ")));
}

function forget(entry) {
  entries = entries.filter(other => other !== entry);
  if (current === entry) { current = null; pad.show(null); showNothing() }
  list();
}

byId("file").addEventListener("change", event => { take(event.target.files); event.target.value = "" });
addEventListener("paste", event => {
  if (!model || !event.clipboardData?.files.length) return;
  event.preventDefault();
  take(event.clipboardData.files);
});
addEventListener("dragover", event => { event.preventDefault(); byId("input").classList.add("dropping") });
addEventListener("dragleave", event => { if (!event.relatedTarget) byId("input").classList.remove("dropping") });
addEventListener("drop", event => {
  event.preventDefault();
  byId("input").classList.remove("dropping");
  if (!model) return;
  if (event.dataTransfer.files.length) take(event.dataTransfer.files);
  else tell(new Error("What was dropped is not a file: save the image first, or copy and paste it."));
});
byId("undo").addEventListener("click", () => pad.undo());
byId("clear").addEventListener("click", clear);

// ---- sliders and the way of asking ----

function slide(name, value) {
  const figure = byId(name);
  figure.querySelector("input").value = value;
  figure.querySelector("output").textContent = SLIDERS[name].written(value);
  figure.querySelector("input").setAttribute("aria-valuetext", SLIDERS[name].named(value));
}

for (const name of NAMES) {
  byId(`${name}-slider`).addEventListener("input", event => {
    slide(name, Number(event.target.value));
    if (!current) return;
    current[name] = Number(event.target.value);
    showCurves();
    refresh();
  });
}
byId("reset").addEventListener("click", () => {
  for (const name of NAMES) { slide(name, 0); if (current) current[name] = 0 }
  if (current) { showCurves(); refresh() }
});
byId("way").addEventListener("change", () => {
  byId("redraw").disabled = byId("way").value === "moments";
  if (current) refresh();
});
byId("redraw").addEventListener("click", () => { seed++; if (current) refresh() });

// ---- the history ----

function goBack(entry) {
  if (entry === current) return;
  if (entry.strokes) pad.restore(entry.strokes); else pad.show(entry.source);
  open(entry);
}

byId("keep").addEventListener("click", () => {
  if (!current?.prediction) return;
  const copy = { ...current, card: null, curves: { ...current.curves } };
  entries.splice(entries.indexOf(current), 0, copy);
  open(copy);
});
byId("forget").addEventListener("click", () => { entries = entries.filter(entry => entry === current); list() });

function list() {
  const told = entries.filter(entry => entry.prediction);
  const most = Math.max(...told.flatMap(({ prediction }) => KINDS.map(kind => prediction[kind])), 1e-12);
  byId("compare").hidden = !told.length;
  byId("forget").disabled = told.length < 2;
  byId("keep").disabled = !current?.prediction;
  // Cards stay the same elements, so that neither focus nor a click under way is lost.
  const cards = told.map(entry => fill(entry, most)), place = byId("history");
  const same = cards.length === place.children.length && cards.every((card, i) => card === place.children[i]);
  if (same) return;
  place.replaceChildren(...cards);
  place.scrollLeft = 0; // the newest is first
}

function fill(entry, most) {
  if (!entry.card) {
    const button = make("button", { type: "button" });
    button.addEventListener("click", () => goBack(entry));
    entry.card = make("li", {}, button);
  }
  const { prediction, noise, rotation } = entry, button = entry.card.firstChild;
  const spoilt = [noise && `noise ${SLIDERS.noise.written(noise)}`, rotation && `turned ${SLIDERS.rotation.written(rotation)}`];
  const measures = KINDS.map(kind => {
    const bar = make("b", { class: kind });
    bar.style.width = `${100 * prediction[kind] / most}%`;
    const number = make("span", {}, `${kind} ${words.level(kind, prediction, model)[0]}`);
    return make("span", { class: "measure" }, make("span", { class: "track" }, bar), number);
  });
  if (entry === current) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
  button.replaceChildren(
    make("img", { src: prediction.preview, alt: "" }),
    make("span", { class: "told" }, make("b", {}, prediction.label), ` ${words.probable(prediction.confidence, 0)}`),
    make("span", { class: "from" }, entry.name, make("br"), spoilt.filter(Boolean).join(", ") || "\u00a0"), ...measures);
  return entry.card;
}

// ---- what is shown ----

function introduce() {
  const drawing = model.draw && model.channels === 1;
  document.title = `${model.name} · dubito`;
  byId("about").replaceChildren(make("b", {}, model.name), ` ${["", ...words.about(model)].join(" · ")}`);
  const digit = model.class_names.every(name => /^\d$/.test(name)) ? "a digit" : "something";
  const keys = make("span", { class: "keys" }, " Without a mouse: arrow keys and space.");
  if (drawing) byId("hint").replaceChildren(`Draw ${digit}, or choose, drop or paste images.`, keys);
  else byId("hint").textContent = "Choose, drop or paste images, or take a sample.";
  const pen = "Drawing pad: arrow keys move the pen, space puts it down and lifts it";
  byId("pad").setAttribute("aria-label", drawing ? pen : "The image");
  if (drawing && !byId("pad").classList.contains("drawable")) pad.enable(model.data);
  byId("undo").hidden = !drawing;
  byId("samples").hidden = !model.examples.length;
  byId("sample-list").replaceChildren(...model.examples.map(example => {
    const title = example.truth ?? example.name, image = make("img", { src: example.image, alt: "" });
    const button = make("button", { type: "button", "aria-label": `Sample: ${title}`, title }, image);
    button.addEventListener("click", () => choose(example));
    return button;
  }));
  const fixed = model.inference === "frequentist";
  const numbers = fixed ? [1] : [...new Set([model.samples, 30, 100])].filter(n => n <= model.max_samples).sort((a, b) => a - b);
  byId("way").replaceChildren(
    ...numbers.map(n => make("option", { value: `weights:${n}` }, fixed ? "its one set of weights" : words.several(n, "draw"))),
    ...(model.methods.includes("moments") && !fixed ? [make("option", { value: "moments" }, "moments")] : []));
  byId("way").value = `weights:${fixed ? 1 : model.samples}`;
  byId("redraw").hidden = fixed;
  byId("unit-words").textContent = words.unitExplained(model);
  byId("rates").textContent = words.rates(model);
  byId("rates").hidden = !byId("rates").textContent;
  byId("point-words").hidden = !fixed;
  byId("point-words").textContent = words.POINT_ESTIMATE;
  const side = model.size;
  byId("made").textContent = `${words.about(model)[0]} “${model.name}”, ${model.head} head, ${side} × ${side} pixels.`
    + (model.validation ? ` Its validation images were predicted by ${words.several(model.validation.samples, "draw")}.` : "");
  for (const id of ["ask", "respond", "meaning"]) byId(id).hidden = false;
  showNothing();
}

function buttons() {
  byId("undo").disabled = pad.isEmpty;
  byId("clear").disabled = !current;
  byId("reset").disabled = !current || !NAMES.some(name => current[name]);
  for (const name of NAMES) byId(`${name}-slider`).disabled = !current;
}

function showNothing() {
  waits(false);
  byId("answer").classList.remove("old");
  byId("says").textContent = "Nothing yet";
  byId("decision").hidden = true;
  byId("sentence").textContent = "The answer and its uncertainty will appear here.";
  noBars(byId("bars"), model.class_names);
  byId("bars-words").textContent = "";
  byId("seen").hidden = true;
  byId("seen-words").textContent = "";
  byId("novelty").hidden = true;
  byId("status").textContent = "";
  for (const kind of KINDS) {
    const place = byId(kind);
    place.querySelector(".value b").textContent = "–";
    place.querySelector(".meter b").style.width = "0";
    place.querySelector(".variance").hidden = true;
    for (const name of [".unit", ".means", ".rank", ".most"]) place.querySelector(name).textContent = "";
    place.querySelector("svg").classList.add("empty");
  }
  for (const name of NAMES) byId(name).classList.add("empty");
  buttons();
}

function show() {
  const { prediction, truth, asked } = current;
  const sure = make("small", {}, `${words.probable(prediction.confidence)} probable`);
  byId("says").replaceChildren("It says ", make("b", {}, prediction.label), " ", sure);
  showDecision(prediction, asked);
  byId("sentence").textContent = `${prediction.verdict.sentence} `;
  const right = truth === prediction.label;
  const told = right ? "The answer is right." : `The answer is wrong: this is ${truth}.`;
  if (truth !== null) byId("sentence").append(make("b", { class: right ? "right" : "wrong" }, told));
  byId("sentence").dataset.level = prediction.verdict.level;
  byId("seen").src = prediction.preview;
  byId("seen").alt = `The image as ${model.size} by ${model.size} pixels`;
  byId("seen").hidden = false;
  byId("seen-words").textContent = `What the network sees, ${model.size} × ${model.size}`;
  byId("answer").classList.remove("old");
  showBars();
  for (const kind of KINDS) showDoubt(kind);
  showNovelty(prediction);
  showCurves();
  buttons();
  announce();
}

/** What to do with the answer, before the answer itself; without a rule, how to get one. Too few draws are warned of. */
function showDecision({ decision, reason }, { warning }) {
  const place = byId("decision");
  place.hidden = false;
  place.title = model.decision ?? "";
  if (!decision) {
    delete place.dataset.decision;
    place.textContent = warning ?? words.undecided(model);
    return;
  }
  place.dataset.decision = decision;
  place.replaceChildren(make("b", {}, words.decided(decision)), ` ${reason}`);
  if (warning) place.append(make("span", { class: "note" }, warning));
}

function showNovelty(prediction) {
  const place = byId("novelty"), share = prediction.novelty?.percentile;
  place.hidden = share === undefined;
  if (place.hidden) return;
  const meter = place.querySelector(".meter"), rank = words.novelty(prediction);
  meter.setAttribute("aria-valuenow", Math.round(100 * share));
  meter.setAttribute("aria-valuetext", rank);
  meter.firstElementChild.style.width = `max(2px, ${100 * share}%)`;
  place.querySelector(".rank").textContent = rank;
}

function showBars() {
  const { prediction, asked } = current, { left, sum } = bars(byId("bars"), prediction, model.class_names);
  const rest = left ? ` The other ${words.count(left)} classes share ${words.percent(sum)}.` : "";
  const how = words.legend(asked, prediction.draws?.length ?? 0, model);
  byId("bars-words").textContent = how + rest + words.within(prediction.conformal);
}

function showDoubt(kind) {
  const place = byId(kind), { prediction } = current, value = prediction[kind], quantiles = model.validation?.[kind];
  const most = words.most(model) ?? Math.max(quantiles?.at(-1) ?? 0, value);
  const [number, unit] = words.level(kind, prediction, model);
  place.querySelector(".value b").textContent = number;
  place.querySelector(".unit").textContent = unit;
  place.querySelector(".variance").hidden = false;
  place.querySelector(".variance p").textContent = words.variance(kind, prediction, model);
  place.dataset.value = value;
  const meter = place.querySelector(".meter");
  meter.setAttribute("aria-valuemax", most);
  meter.setAttribute("aria-valuenow", value);
  meter.setAttribute("aria-valuetext", `${words.small(value)} of at most ${words.small(most)}`);
  meter.firstElementChild.style.width = `max(2px, ${100 * Math.min(value / most, 1)}%)`;
  place.querySelector(".most").textContent = `${words.small(most)}, ${words.most(model) ? "a pure guess" : "the most seen"}`;
  place.querySelector(".means").textContent = words.means(kind, prediction, model);
  place.querySelector(".means").hidden = !prediction.percentile;
  const compared = words.compares(kind, prediction, model);
  place.querySelector(".rank").textContent = compared ? "" : words.rank(kind, prediction, model);
  const svg = place.querySelector("svg"), known = quantiles && quantiles.at(-1) > 0;
  svg.classList.remove("empty");
  svg.toggleAttribute("hidden", !known);
  if (!known) return;
  const what = `Distribution of the ${kind} uncertainty of the validation images, with this image marked.`;
  svg.setAttribute("aria-label", `${what} ${words.rank(kind, prediction, model)}`);
  distribution(svg, quantiles, value);
}

function showCurves() {
  buttons();
  for (const name of NAMES) {
    const figure = byId(name), curve = current.curves[name];
    figure.classList.toggle("empty", !curve);
    if (!curve) continue;
    figure.classList.toggle("stale", curve.basis !== basis(current, name));
    const { prediction } = current, { validation } = model;
    const [picture, told] = figure.querySelector(".live").children;
    if (prediction) picture.src = prediction.preview;
    told.textContent = prediction ? `${prediction.label}, ${words.probable(prediction.confidence, 0)}` : "";
    const limits = validation && { aleatoric: validation.aleatoric[95], epistemic: validation.epistemic[95] };
    const now = prediction && { ...prediction, at: current[name] };
    curves(figure.querySelector("svg"), { points: curve.points, now, limits, inset: THUMB });
    const summary = words.journey(curve.points, SLIDERS[name].named);
    figure.querySelector(".summary").textContent = summary;
    figure.querySelector("svg").setAttribute("aria-label", `Both uncertainties over the whole range. ${summary}`);
  }
}

let speaking;
function announce() {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    if (!current?.prediction) return;
    const { prediction } = current;
    const doubts = KINDS.map(kind => `${kind} uncertainty: ${words.level(kind, prediction, model).join(" ")}.`);
    const said = `${prediction.label}, ${words.probable(prediction.confidence)} probable.`;
    const decided = prediction.decision ? [`${words.decided(prediction.decision)} ${prediction.reason}.`] : [];
    byId("status").textContent = [...decided, said, prediction.verdict.sentence, ...doubts].join(" ");
  }, 500);
}

// ---- light and dark ----

byId("theme").addEventListener("click", () => {
  const root = document.documentElement, chosen = root.dataset.theme;
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("dubito-theme", root.dataset.theme) } catch {}
});

// The figures, drawn by hand as SVG.

import { probable, small } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const ALL = 12, TOP = 10; // classes shown: all of few, the top of many
const painters = new WeakMap();
const watcher = new ResizeObserver(entries => entries.forEach(({ target }) => painters.get(target)?.()));

/** An element, of SVG if its name is one of SVG's. */
export function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "path", "circle", "text", "polygon"].includes(name);
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Keep a figure as wide as its place. */
function paintInto(svg, parts) {
  const paint = () => { const width = svg.clientWidth; if (width) svg.replaceChildren(...parts(width).filter(Boolean)) };
  if (!painters.has(svg)) watcher.observe(svg);
  painters.set(svg, paint);
  paint();
}

const share = value => `${(100 * Math.min(Math.max(value, 0), 1)).toFixed(2)}%`;

/** The classes as bars with whiskers, and each draw as a dot. Says how many classes are left out and what they add up to. */
export function bars(list, prediction, names) {
  const probabilities = names.map(name => prediction.probabilities[name]);
  let order = names.map((_, i) => i);
  if (names.length > ALL) order = order.sort((a, b) => probabilities[b] - probabilities[a]).slice(0, TOP);
  while (list.children.length > order.length) list.lastChild.remove();
  while (list.children.length < order.length) list.append(row());
  order.forEach((index, place) => {
    const item = list.children[place], [name, track, number] = item.children;
    const mean = probabilities[index], std = prediction.per_class?.std?.[index] ?? 0;
    item.classList.toggle("chosen", index === prediction.index);
    item.dataset.index = index;
    item.dataset.probability = mean;
    item.dataset.std = std;
    name.textContent = name.title = names[index];
    const spread = std >= 5e-4 ? `± ${(100 * std).toFixed(1)}` : "";
    number.replaceChildren(make("span", {}, probable(mean)), make("small", {}, spread));
    const [bar, dots, whisker] = track.children;
    bar.setAttribute("width", share(mean));
    const [line, low, high] = whisker.children, ends = [share(mean - std), share(mean + std)];
    set(line, { x1: ends[0], x2: ends[1] });
    set(low, { x1: ends[0], x2: ends[0] });
    set(high, { x1: ends[1], x2: ends[1] });
    whisker.classList.toggle("slight", std < .002);
    const draws = prediction.draws ?? [];
    while (dots.children.length > draws.length) dots.lastChild.remove();
    // A draw keeps its height in every row, so that an eye can follow it.
    while (dots.children.length < draws.length)
      dots.append(make("circle", { r: 2.4, cy: (4 + 16 * ((dots.children.length + 1) * .618034 % 1)).toFixed(1) }));
    draws.forEach((draw, t) => dots.children[t].setAttribute("cx", share(draw[index])));
  });
  const left = names.length - order.length;
  return { left, sum: Math.max(0, 1 - order.reduce((sum, index) => sum + probabilities[index], 0)) };
}

/** The place of the bars before there is an answer. */
export function noBars(list, names) {
  list.replaceChildren(...names.slice(0, names.length > ALL ? 0 : ALL).map(name => {
    const item = row();
    item.firstChild.textContent = name;
    item.lastChild.append(make("span"), make("small"));
    return item;
  }));
}

const set = (element, attributes) => { for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value) };

function row() {
  const [line, low, high] = [[12, 12], [8, 16], [8, 16]].map(([y1, y2]) => make("line", { y1, y2 }));
  const whisker = make("g", { class: "whisker slight" }, line, low, high);
  const mean = make("rect", { class: "mean", x: 0, y: 5, height: 14, width: 0 });
  const track = make("svg", { class: "track", height: 24, "aria-hidden": "true" }, mean, make("g", { class: "dots" }), whisker);
  return make("li", {}, make("span", { class: "name" }), track, make("span", { class: "number" }));
}

/** The validation images' distribution on a logarithmic axis; those less doubtful than `value` are coloured. */
export function distribution(svg, quantiles, value) {
  const top = Math.max(quantiles.at(-1), value);
  if (!(top > 0)) return paintInto(svg, () => []);
  // The lowest hundredths can reach over many decades and say little.
  const floor = Math.max(Math.min(quantiles[2] || quantiles.find(v => v > 0), top), top * 1e-12);
  const low = Math.log10(floor) - .05, high = Math.log10(top) + .05;
  const at = v => (Math.log10(Math.max(v, floor)) - low) / (high - low);
  paintInto(svg, width => {
    const count = Math.floor(width / 7), mass = new Float64Array(count), tall = 52, base = 70;
    for (let i = 1; i < quantiles.length; i++) {
      const from = at(quantiles[i - 1]) * count, to = Math.max(at(quantiles[i]) * count, from + 1e-9);
      for (let bin = Math.floor(from); bin < Math.min(to, count); bin++)
        mass[bin] += (Math.min(to, bin + 1) - Math.max(from, bin)) / (to - from);
    }
    const largest = Math.max(...mass), x = at(value) * width;
    const wide = width / count;
    const columns = [...mass].map((m, bin) => m && make("rect", {
      class: (bin + .5) * wide <= x ? "below" : "above", x: (bin * wide + 1).toFixed(1), width: (wide - 2).toFixed(1),
      y: (base - Math.max(2, tall * m / largest)).toFixed(1), height: Math.max(2, tall * m / largest).toFixed(1),
    }));
    const edge = Math.min(Math.max(x, 6), width - 6);
    return [
      make("line", { class: "axis", x1: 0, x2: width, y1: base + .5, y2: base + .5 }), ...columns,
      make("text", { x: 0, y: base + 16 }, "less doubt"),
      make("text", { x: width, y: base + 16, "text-anchor": "end" }, "more doubt"),
      make("line", { class: "marker", x1: edge, x2: edge, y1: 10, y2: base }),
      make("polygon", { class: "marker", points: `${edge - 6},3 ${edge + 6},3 ${edge},12` }),
    ];
  });
}

/**
 * Both uncertainties over a slider's range, one panel each, and what is answered where.
 * `points` have at, label, aleatoric, epistemic; `now` is the same for the present image. The slider below is the axis.
 */
export function curves(svg, { points, now, limits, inset }) {
  if (now) points = [...points.filter(point => point.at !== now.at), now].sort((a, b) => a.at - b.at);
  paintInto(svg, width => {
    const [first, last] = [points[0].at, points.at(-1).at];
    const x = value => inset + (value - first) / (last - first) * (width - 2 * inset);
    const parts = [];
    ["aleatoric", "epistemic"].forEach((kind, panel) => {
      const top = 18 + panel * 82, base = top + 58;
      const largest = Math.max(...points.map(point => point[kind]), limits?.[kind] ?? 0), highest = 1.08 * largest || 1;
      const y = value => base - value / highest * (base - top);
      const line = points.map((point, i) => `${i ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point[kind]).toFixed(1)}`).join("");
      parts.push(
        make("line", { class: "axis", x1: inset, x2: width - inset, y1: base + .5, y2: base + .5 }),
        make("path", { class: `area ${kind}`, d: `${line}L${x(last)} ${base}L${x(first)} ${base}Z` }),
        make("path", { class: `curve ${kind}`, d: line, "data-kind": kind, "data-points": points.length }),
        limits && make("line", { class: "limit", x1: inset, x2: width - inset, y1: y(limits[kind]), y2: y(limits[kind]) }),
        make("text", { x: inset, y: top - 6 }, kind),
        make("text", { x: width - inset, y: top - 6, "text-anchor": "end" }, largest ? `up to ${small(largest)}` : "always 0"),
        now && make("line", { class: "now", x1: x(now.at), x2: x(now.at), y1: top, y2: base }),
        now && make("circle", { class: `now ${kind}`, cx: x(now.at), cy: y(now[kind]), r: 5 }),
      );
    });
    return [...parts, ...answers(points, x, 174)];
  });
}

/** A strip of what is answered over the range: a box for each stretch with the same answer. */
function answers(points, x, top) {
  const stretches = [];
  for (const point of points) {
    if (stretches.at(-1)?.label === point.label) stretches.at(-1).to = point.at;
    else stretches.push({ label: point.label, from: point.at, to: point.at });
  }
  const middle = (a, b) => (x(a) + x(b)) / 2;
  return stretches.flatMap((stretch, i) => {
    const from = i ? middle(stretches[i - 1].to, stretch.from) : x(stretch.from);
    const to = i + 1 < stretches.length ? middle(stretch.to, stretches[i + 1].from) : x(stretch.to);
    const fits = to - from > 7.2 * stretch.label.length + 6;
    return [
      make("rect", { class: "stretch", x: from + .75, y: top, width: Math.max(to - from - 1.5, .5), height: 20, rx: 3 }),
      fits ? make("text", { class: "answer", x: (from + to) / 2, y: top + 14, "text-anchor": "middle" }, stretch.label) : null,
    ];
  });
}

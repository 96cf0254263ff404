"use strict";
{
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const painters = [];
  const repaint = () => painters.forEach(paint => paint());
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("dubito-theme", root.dataset.theme) } catch {}
    repaint();
  });
  dark.addEventListener("change", repaint);
  // Paper is white, and what is folded cannot be opened on it.
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    document.querySelectorAll("details").forEach(details => { details.open = true });
    repaint();
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    repaint();
  });

  const source = document.getElementById("scatter-data");
  if (source) painters.push(scatter(JSON.parse(source.textContent)));
  repaint();

  function scatter(data) {
    const canvas = document.getElementById("scatter"), tip = document.getElementById("tip");
    const [picture, words] = tip.children;
    const pen = canvas.getContext("2d");
    const logarithmic = document.getElementById("scatter-log");
    const boxes = [...document.querySelectorAll("[data-group]")];
    const sheet = new Image();
    sheet.src = data.sheet.uri;
    const margin = { left: 58, right: 14, top: 12, bottom: 44 };
    const color = name => getComputedStyle(root).getPropertyValue("--" + name).trim();
    let width = 0, height = 0, places = [], chosen = -1;

    const axis = values => {
      const positive = values.filter(v => v > 0).sort((a, b) => a - b);
      const top = positive.at(-1) * 1.15;
      return { top, floor: Math.max(positive[Math.floor(positive.length * .004)], top / 1e7) };
    };
    const across = axis(data.aleatoric), up = axis(data.epistemic);
    const share = (v, { floor, top }) => logarithmic.checked
      ? Math.log(Math.max(v, floor) / floor) / Math.log(top / floor) : v / top;
    const ticks = ({ floor, top }) => {
      const found = [];
      if (logarithmic.checked) {
        const subs = top / floor < 100 ? [1, 2, 5] : [1];
        for (let e = Math.floor(Math.log10(floor)); e <= Math.log10(top); e++)
          for (const sub of subs) { const v = sub * 10 ** e; if (v >= floor && v <= top) found.push(v) }
        return found;
      }
      const raw = top / 5, unit = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map(k => k * unit).find(s => s >= raw);
      for (let k = 0; k * step <= top; k++) found.push(Number((k * step).toPrecision(6)));
      return found;
    };
    const written = v => {
      const power = Math.round(Math.log10(v));
      if (!logarithmic.checked || Math.abs(v / 10 ** power - 1) > .01) return String(Number(v.toPrecision(6)));
      return "10" + [...String(power)].map(c => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
    };
    const x = v => margin.left + share(v, across) * (width - margin.left - margin.right);
    const y = v => height - margin.bottom - share(v, up) * (height - margin.top - margin.bottom);
    const shown = i => boxes[data.group[i]].checked;

    function frame() {
      pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
      pen.strokeStyle = color("grid"); pen.fillStyle = color("ink"); pen.lineWidth = 1;
      pen.textAlign = "center"; pen.textBaseline = "top";
      const line = (...p) => { pen.beginPath(); pen.moveTo(p[0], p[1]); pen.lineTo(p[2], p[3]); pen.stroke() };
      let last = -Infinity;
      for (const v of ticks(across)) {
        line(x(v), margin.top, x(v), height - margin.bottom);
        if (x(v) - last > 44) { pen.fillText(written(v), x(v), height - margin.bottom + 6); last = x(v) }
      }
      pen.textAlign = "right"; pen.textBaseline = "middle";
      for (const v of ticks(up)) {
        line(margin.left, y(v), width - margin.right, y(v));
        pen.fillText(written(v), margin.left - 7, y(v));
      }
      pen.textAlign = "center"; pen.textBaseline = "alphabetic";
      pen.fillText("aleatoric uncertainty", (margin.left + width) / 2, height - 6);
      pen.save(); pen.translate(12, (height - margin.bottom) / 2); pen.rotate(-Math.PI / 2);
      pen.fillText("epistemic uncertainty", 0, 0); pen.restore();
    }

    function paint() {
      const scale = devicePixelRatio || 1;
      width = canvas.clientWidth; height = canvas.clientHeight;
      canvas.width = width * scale; canvas.height = height * scale;
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      frame();
      places = data.aleatoric.map((v, i) => [x(v), y(data.epistemic[i])]);
      for (const group of data.order) {
        pen.fillStyle = color(data.colors[group]); pen.globalAlpha = .62;
        for (let i = 0; i < places.length; i++) {
          if (data.group[i] !== group || !shown(i)) continue;
          pen.beginPath(); pen.arc(...places[i], 3.2, 0, 7); pen.fill();
        }
      }
      pen.globalAlpha = 1;
      if (chosen >= 0 && shown(chosen)) {
        pen.strokeStyle = color("ink"); pen.lineWidth = 2;
        pen.beginPath(); pen.arc(...places[chosen], 6, 0, 7); pen.stroke();
      }
    }

    function show(i) {
      chosen = i;
      tip.hidden = i < 0;
      paint();
      if (i < 0) return;
      const { columns, side } = data.sheet;
      const put = () => picture.getContext("2d").drawImage(
        sheet, (i % columns) * side, Math.floor(i / columns) * side, side, side, 0, 0, side, side);
      sheet.complete ? put() : sheet.addEventListener("load", put, { once: true });
      const lines = [
        data.names[data.group[i]] + ": " + data.classes[data.predicted[i]] + ", " + (100 * data.confidence[i]).toFixed(0) + " %",
        data.truth[i] === null ? "" : "true class: " + data.classes[data.truth[i]],
        ...["aleatoric", "epistemic"].map(kind => {
          const size = data[kind][i].toPrecision(2), above = data.above[kind][i];
          return above ? `${kind} above ${above} of validation images (${size})` : `${kind} ${size}`;
        }),
        data.file[i],
      ].filter(Boolean);
      words.replaceChildren(...lines.map((text, k) => {
        const line = document.createElement(k ? "div" : "b");
        line.textContent = text;
        return line;
      }));
      const [px, py] = places[i], w = tip.offsetWidth, h = tip.offsetHeight;
      const left = px + 16 + w <= width ? px + 16 : Math.max(0, px - 16 - w);
      tip.style.transform = `translate(${left}px, ${Math.min(Math.max(0, py - h / 2), Math.max(0, height - h))}px)`;
      tip.dataset.index = i;
    }

    function nearest(event) {
      const box = canvas.getBoundingClientRect();
      const px = event.clientX - box.left, py = event.clientY - box.top;
      let best = -1, least = 26 ** 2;
      places.forEach(([qx, qy], i) => {
        const distance = (qx - px) ** 2 + (qy - py) ** 2;
        if (distance < least && shown(i)) { least = distance; best = i }
      });
      return best;
    }

    function step(by) {
      const order = places.map((_, i) => i).filter(shown).sort((a, b) => places[a][0] - places[b][0]);
      if (order.length) show(order[(order.indexOf(chosen) + by + order.length) % order.length]);
    }

    canvas.addEventListener("pointermove", event => { const i = nearest(event); if (i !== chosen) show(i) });
    canvas.addEventListener("pointerdown", event => show(nearest(event)));
    canvas.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") show(-1) });
    canvas.addEventListener("keydown", event => {
      if (event.key === "ArrowRight") step(1); else if (event.key === "ArrowLeft") step(-1);
      else if (event.key === "Escape") show(-1); else return;
      event.preventDefault();
    });
    [...boxes, logarithmic].forEach(box => box.addEventListener("change", () => show(-1)));
    new ResizeObserver(() => { if (canvas.clientWidth !== width) { chosen = -1; tip.hidden = true; paint() } }).observe(canvas);
    canvas.placeOf = i => places[i];
    return paint;
  }
}

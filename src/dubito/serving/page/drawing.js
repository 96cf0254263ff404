// The pad: drawing with mouse, finger, pen or keyboard, and what is drawn as the images that the network was trained on.

const PEN = .075; // of the pad's side
const STEP = .04;
const LARGEST = 5; // a dot is not blown up to a digit

/** How the images of a data set came to be: their side, the box that the ink fills, the pen, and how it is centred. */
const FRAMES = {
  digits: { side: 8, width: 6, height: 8, pen: 1.4, stretched: true, byMass: false },
  mnist: { side: 28, width: 20, height: 20, pen: 2.3, stretched: false, byMass: true },
};

export class Pad {
  strokes = [];
  #canvas; #pen; #picture = null; #enabled = false; #changed; #cursor = null; #down = false; #frame; #shown = 0;

  constructor(canvas, changed) {
    this.#canvas = canvas;
    this.#pen = canvas.getContext("2d");
    this.#changed = changed;
    this.#paint();
  }

  /** Let the user draw; digits of `data` are made. */
  enable(data) {
    this.#enabled = true;
    this.#frame = FRAMES[data] ?? FRAMES.mnist;
    const canvas = this.#canvas;
    canvas.classList.add("drawable");
    canvas.tabIndex = 0;
    canvas.addEventListener("pointerdown", event => {
      if (event.button !== 0) return;
      event.preventDefault();
      canvas.focus({ preventScroll: true, focusVisible: false });
      canvas.setPointerCapture(event.pointerId);
      this.#cursor = null;
      this.#down = true;
      this.#begin(this.#place(event));
    });
    canvas.addEventListener("pointermove", event => {
      if (!this.#down || !canvas.hasPointerCapture(event.pointerId)) return;
      for (const one of event.getCoalescedEvents?.() ?? []) this.#extend(this.#place(one));
      this.#extend(this.#place(event));
      this.#tell();
    });
    for (const name of ["pointerup", "pointercancel"])
      canvas.addEventListener(name, () => { if (this.#down) { this.#down = false; this.#tell() } });
    canvas.addEventListener("keydown", event => this.#key(event));
    canvas.addEventListener("blur", () => { this.#cursor = null; this.#down = false; this.#paint() });
    this.#paint();
  }

  get isEmpty() { return this.strokes.length === 0 }

  /** Show an image, or with null an empty pad. Says whether the browser could read it. */
  async show(url) {
    this.restore([]);
    if (!url) return true;
    const shown = this.#shown, picture = new Image();
    picture.src = url;
    try { await picture.decode() } catch { return false }
    if (shown !== this.#shown) return true; // something else has taken its place
    this.#picture = picture;
    this.#paint();
    return true;
  }

  /** Put strokes back, as from the history. */
  restore(strokes) {
    this.strokes = strokes.map(stroke => [...stroke]);
    this.#picture = null;
    this.#shown++;
    this.#paint();
  }

  undo() {
    this.strokes.pop();
    this.#tell();
  }

  /**
   * The drawing as a data: URL, made as the training images were: white on black, scaled to fit a box whatever its size
   * on the pad, with a pen of one width, and centred (MNIST: by its centre of mass).
   */
  image() {
    const { side, width, height, pen, stretched, byMass } = this.#frame;
    const fine = 8, canvas = document.createElement("canvas");
    canvas.width = canvas.height = side * fine;
    const ink = canvas.getContext("2d", { willReadFrequently: true });
    const [across, down] = [0, 1].map(axis => {
      const values = this.strokes.flat().map(point => point[axis]);
      return { low: Math.min(...values), high: Math.max(...values) };
    });
    const fit = ({ low, high }, box) => Math.min((box - pen) / Math.max(high - low, 1e-6), LARGEST * box);
    const scale = Math.min(fit(across, width), fit(down, height));
    const [sx, sy] = [scale, stretched ? fit(down, height) : scale];
    const paint = (dx, dy) => {
      ink.setTransform(1, 0, 0, 1, 0, 0);
      ink.fillStyle = "#000";
      ink.fillRect(0, 0, canvas.width, canvas.height);
      ink.setTransform(fine, 0, 0, fine, 0, 0);
      const put = ([x, y]) => [
        side / 2 + dx + sx * (x - (across.low + across.high) / 2),
        side / 2 + dy + sy * (y - (down.low + down.high) / 2),
      ];
      trace(ink, this.strokes.map(stroke => stroke.map(put)), pen, "#fff");
      return average(ink.getImageData(0, 0, canvas.width, canvas.height).data, side, fine);
    };
    const pixels = paint(0, 0);
    return encode(byMass ? paint(...offset(pixels, side)) : pixels, side);
  }

  #place(event) {
    const box = this.#canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  #begin(point) {
    this.#picture = null;
    this.#shown++;
    this.strokes.push([point]);
    this.#tell();
  }

  #extend(point) { this.strokes.at(-1).push(point) }

  #tell() { this.#paint(); this.#changed(this) }

  /** Arrows move the pen, space puts it down and lifts it. */
  #key(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey)) { if (!this.isEmpty) this.undo() }
    else if (event.key === " ") {
      this.#cursor ??= [.5, .5];
      this.#down = !this.#down;
      if (this.#down) this.#begin(this.#cursor); else this.#paint();
    } else if (move) {
      const [x, y] = this.#cursor ?? [.5, .5];
      this.#cursor = [x + STEP * move[0], y + STEP * move[1]].map(v => Math.min(Math.max(v, .05), .95));
      if (this.#down) { this.#extend(this.#cursor); this.#tell() } else this.#paint();
    } else if (event.key === "Escape" && this.#cursor) { this.#cursor = null; this.#down = false; this.#paint() }
    else return;
    event.preventDefault();
  }

  #paint() {
    const { width, height } = this.#canvas, pen = this.#pen, picture = this.#picture;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, width, height);
    if (picture) {
      const scale = Math.min(width / picture.naturalWidth, height / picture.naturalHeight);
      const [w, h] = [scale * picture.naturalWidth, scale * picture.naturalHeight];
      pen.imageSmoothingEnabled = picture.naturalWidth > 96;
      pen.imageSmoothingQuality = "high";
      pen.drawImage(picture, (width - w) / 2, (height - h) / 2, w, h);
    }
    if (this.#enabled && !picture && this.isEmpty && !this.#cursor) {
      pen.fillStyle = "#8b949e";
      pen.font = `${.065 * width}px system-ui, "DejaVu Sans", sans-serif`;
      pen.textAlign = "center";
      pen.fillText("Draw here", width / 2, .52 * height);
    }
    pen.setTransform(width, 0, 0, height, 0, 0);
    trace(pen, this.strokes, PEN, "#fff");
    if (!this.#enabled || !this.#cursor) return;
    pen.lineWidth = .008;
    pen.strokeStyle = this.#down ? "#f5b042" : "#58a9ee";
    pen.beginPath();
    pen.arc(...this.#cursor, PEN / 2 + .01, 0, 7);
    pen.stroke();
  }
}

function trace(pen, strokes, width, color) {
  pen.lineWidth = width;
  pen.lineCap = pen.lineJoin = "round";
  pen.strokeStyle = color;
  for (const [first, ...rest] of strokes) {
    pen.beginPath();
    pen.moveTo(...first);
    if (!rest.length) pen.lineTo(first[0] + .01 * width, first[1]);
    for (const point of rest) pen.lineTo(...point);
    pen.stroke();
  }
}

/** Means over squares of `fine` x `fine` pixels. */
function average(rgba, side, fine) {
  const pixels = new Float64Array(side * side), width = side * fine;
  for (let y = 0; y < width; y++)
    for (let x = 0; x < width; x++)
      pixels[Math.floor(y / fine) * side + Math.floor(x / fine)] += rgba[4 * (y * width + x)] / (fine * fine);
  return pixels;
}

/** From the centre of mass to the middle. */
function offset(pixels, side) {
  let mass = 0, x = 0, y = 0;
  pixels.forEach((value, i) => { mass += value; x += value * (i % side + .5); y += value * (Math.floor(i / side) + .5) });
  return mass ? [side / 2 - x / mass, side / 2 - y / mass] : [0, 0];
}

function encode(pixels, side) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d"), image = pen.createImageData(side, side);
  pixels.forEach((value, i) => image.data.set([value, value, value, 255], 4 * i));
  pen.putImageData(image, 0, 0);
  return canvas.toDataURL("image/png");
}

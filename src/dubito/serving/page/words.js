// Numbers and sentences, as people read them.

const NETWORKS = { lenet5: "LeNet-5", alexnet: "AlexNet", vgg16: "VGG16" };
const KINDS = { vi: "Bayesian ", frequentist: "Point-estimate ", dropout: "MC-dropout " };

/** Two digits that count, and no more than four places: 0.012, 0.0003, < 0.0001. */
export function small(value) {
  if (!value) return "0";
  return value < 1e-4 ? "<\u00a00.0001" : String(Number(value.toPrecision(2)));
}

/** A share as a percentage; never 0 % for what is not. */
export function percent(share, digits = 1) {
  const least = 10 ** -digits;
  return share > 0 && 100 * share < least ? `<\u00a0${least}\u00a0%` : `${(100 * share).toFixed(digits)}\u00a0%`;
}

/** A probability as a percentage: never 100 %, which a network cannot know but a rounded number can say. */
export function probable(share, digits = 1) {
  const least = 10 ** -digits;
  return 100 - 100 * share < least ? `>\u00a0${(100 - least).toFixed(digits)}\u00a0%` : percent(share, digits);
}

export const count = value => value.toLocaleString("en-GB");
export const several = (number, thing) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;

/** What the model is, where it learnt and how good it is. */
export function about(model) {
  const network = `${KINDS[model.inference] ?? ""}${NETWORKS[model.model] ?? model.model}`;
  const { validation } = model;
  const right = validation
    ? `right on ${percent(validation.accuracy)} of ${count(validation.images)} validation images`
    : "validation accuracy unknown";
  const size = [`${model.class_names.length} classes`, `${count(model.parameters)} parameters`];
  return [network, `trained on ${model.data}`, ...size, right];
}

/** The largest value that both uncertainties can have together, if there is one. */
export function most(model) {
  const classes = model.class_names.length;
  return model.head === "kendall_gal" ? null : (1 - 1 / classes) / classes;
}

export function unit(model) {
  if (model.head === "kendall_gal") return "variance of the logits, mean over the classes";
  return `variance of the label, mean over ${model.class_names.length} classes`;
}

export function unitExplained(model) {
  if (model.head === "kendall_gal")
    return "Both uncertainties are variances of the network’s outputs (logits), averaged over the classes. "
      + "They have no upper limit.";
  return "Both uncertainties are variances, averaged over the classes: the part within the draws is aleatoric, the part "
    + `between them epistemic. Their sum is 0 for a certain answer and ${small(most(model))} for a pure guess among `
    + `${model.class_names.length} classes. The whisker of a class is the square root of its epistemic part.`;
}

const STRONG = {
  aleatoric: "The image itself is ambiguous.",
  epistemic: "The draws of the model disagree about this image.",
};
const SOME = {
  aleatoric: "For the model, this image is less clear than most.",
  epistemic: "The draws disagree a little more than for most images.",
};
const LITTLE = {
  aleatoric: "For the model, this image is as clear as most.",
  epistemic: "The draws agree as much as for most images.",
};

/** What one uncertainty means for this image. */
export function means(kind, prediction, model) {
  if (kind === "epistemic" && model.inference === "frequentist")
    return "This network has only one set of weights, so there are no draws to compare. The 0 has no meaning.";
  const level = prediction.verdict?.level, rank = prediction.percentile?.[kind];
  if (level === "both" || level === { aleatoric: "ambiguous", epistemic: "undecided" }[kind]) return STRONG[kind];
  if (rank === undefined) return "";
  return rank > .75 ? SOME[kind] : LITTLE[kind];
}

/** How unlike the training images the image is; empty where that was not fitted. */
export function novelty(prediction) {
  if (!prediction.novelty) return "";
  const share = prediction.novelty.percentile;
  if (share >= .995) return "More unlike the training images than nearly all validation images.";
  return `More unlike the training images than ${percent(share, 0)} of the validation images.`;
}

/** What the rule promises, and how often usual images are called unusual. */
export function rates(model) {
  const rule = model.decision ? `The rule: ${model.decision} ` : "", { alarms } = model.validation ?? {};
  if (!alarms) return rule;
  const rates = [[alarms.ambiguous, "ambiguous"], [model.inference !== "frequentist" && alarms.undecided, "undecided"],
    [alarms.unfamiliar, "unlike the training images"]].filter(([share]) => share);
  const said = rates.map(([share, name], i) => `${percent(share, 0)} ${i ? "" : "of usual images "}${name}`);
  return `${rule}The sentence above calls ${said.join(", ")}.`;
}

/** Why there is no decision. */
export function undecided(model) {
  return model.decision ? "No decision: the rule is for draws of the weights." : "No rule yet. Fit one with: dubito decide RUN --max-error 0.01";
}

/** Where the image stands among the validation images. */
export function rank(kind, prediction, model) {
  const share = prediction.percentile?.[kind];
  if (!model.validation || share === undefined)
    return "The server has no validation images of this model, so it is not known whether this is unusual.";
  if (kind === "epistemic" && model.inference === "frequentist") return "It is 0 for all validation images.";
  const images = `${count(model.validation.images)} validation images`;
  if (share >= .995) return `More doubtful than nearly all ${images}.`;
  if (share < .005) return `Less doubtful than nearly all ${images}.`;
  return `More doubtful than ${percent(share, 0)} of ${images}.`;
}

/** Whether the server can say where the image stands among the validation images. */
export const compares = (kind, prediction, model) => Boolean(model.validation) && prediction.percentile?.[kind] !== undefined
  && !(kind === "epistemic" && model.inference === "frequentist");

/** One uncertainty as a number that people can read, and what it counts. */
export function level(kind, prediction, model) {
  const share = prediction.percentile?.[kind], value = prediction[kind];
  if (compares(kind, prediction, model)) {
    const number = share >= .995 ? ">\u00a099\u00a0%" : percent(share, 0);
    return [number, `of ${count(model.validation.images)} validation images are less doubtful`];
  }
  return most(model) ? [percent(value / most(model), 0), "of a pure guess"] : [small(value), unit(model)];
}

/** The same as a variance, for those who ask. */
export function variance(kind, prediction, model) {
  const guess = most(model) ? `; a pure guess has ${small(most(model))}` : "";
  return `${small(prediction[kind])}, ${unit(model)}${guess}.`;
}

/** The classes that a conformal set leaves. */
export function within(conformal) {
  if (!conformal) return "";
  const { coverage, set, text } = conformal, named = set.length > 6 ? `${set.length} classes` : text;
  const share = `${Number((100 * coverage).toFixed(2))}\u00a0%`;
  return ` ${share} set: ${named}; such sets hold the true class of ${share} of images like the validation ones.`;
}

/** What bars, whiskers and dots are. */
export function legend(asked, shown, model) {
  if (model.inference === "frequentist")
    return "Bars: probabilities. This network has only one set of weights, so there is no spread.";
  if (asked.method === "moments")
    return "Bars: mean probability; whiskers and ±: standard deviation, computed from means and variances "
      + "instead of draws.";
  const dots = shown < asked.samples ? `the first ${shown} draws` : "each draw";
  return `Bars: mean probability of ${several(asked.samples, "draw")} of the network; whiskers and ±: their standard `
    + `deviation; dots: ${dots}.`;
}

export const POINT_ESTIMATE = "This model was trained in the usual way: its weights are numbers, so there is nothing "
  + "to draw. Its epistemic uncertainty is always 0, which means that it is not known, not that there is none.";

/** How the answer changes along a curve. */
export function journey(points, written) {
  const turns = points.slice(1).filter((point, i) => point.label !== points[i].label);
  const peak = kind => points.reduce((a, b) => b[kind] > a[kind] ? b : a);
  const kinds = ["aleatoric", "epistemic"].filter(kind => peak(kind)[kind] > 0);
  const highest = kinds.map(kind => `Most ${kind} at ${written(peak(kind).at)}.`).join(" ");
  if (!turns.length) return `The answer stays ${points[0].label}. ${highest}`;
  if (turns.length === 1) return `From ${written(turns[0].at)} on the answer is ${turns[0].label}. ${highest}`;
  return `The answer changes ${turns.length} times. ${highest}`;
}

// What a rule decided, as a heading; the reason follows it.
export function decided(decision) {
  return { accept: "Accept:", review: "Have it reviewed:", unfamiliar: "Refuse as unfamiliar:" }[decision] ?? decision;
}

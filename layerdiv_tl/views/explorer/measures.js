// The measures of components, computed here from the sums that Python packed: for 512 tokens these are a tenth of the
// measures themselves. Every measure is drawn from its zero baseline, its value for a component of zeros.

const GROWS = "It grows with the size of the contribution; the dashed line is the zero baseline: a component that writes nothing.";
const squared = { unit: "logits²", squared: true };

// Of each: its name on a button and the hint there, its unit, its name and its meaning in titles and captions.
const MEASURES = {
  logit: {
    ...{ name: "logit", unit: "logits", says: (x) => `logit of ${x.towards}` },
    hint: "contribution to the logit of the target, relative to the component's mean over the vocabulary",
    means: (x, token) =>
      x.minus
        ? `Contribution of each component to the logit of ${token} minus that of ${said(x.minus.word)}. Hovers have the ` +
          "contribution to each of the two, relative to the component's mean over the vocabulary."
        : `Contribution of each component to the logit of ${token}, relative to its mean over the vocabulary. They sum ` +
          "to the model's own, relative to its mean.",
  },
  cross_entropy: {
    ...{ name: "cross-entropy", unit: "nats", says: (x) => `cross-entropy of ${said(x.answer.word)}` },
    hint: "contribution to the loss, in nats",
    means: (_, token) =>
      `Contribution of each component to the cross-entropy of ${token}, in nats: below the line it lowers the loss. ` +
      "Components and the entropy of the prediction sum to the loss.",
  },
  bias: {
    ...{ name: "bias", ...squared, says: (x) => `${x.chosen.part} bias` },
    hint: "squared distance of the component alone from the target",
    means: (_, token, over) => `Mean squared distance of a component's logits from the target (1 for ${token}, else 0), ${over}. ${GROWS}`,
  },
  diversity: {
    ...{ name: "diversity", ...squared, says: (x) => `${x.chosen.part} diversity` },
    hint: "squared distance of the component from the mean of all",
    means: (_, __, over) => `Mean squared distance of a component's logits from the mean of all components, ${over}. ${GROWS}`,
  },
  net: {
    ...{ name: "net", ...squared, says: (x) => `${x.chosen.part} net` },
    hint: "bias − diversity: a component's part in the squared error",
    means: (_, token, over) =>
      `Net = bias − diversity, a component's part in the squared error. As a mean ${over} it measures agreement with the ` +
      `model's own logits, not with ${token}; for that, look at the logit. The dashed line is the zero baseline.`,
  },
};

// The two sides of a logit difference: what a component adds to either token, relative to its mean over the vocabulary.
function sides(x, i, minus = x.minus) {
  if (!minus) return "";
  const side = (answer) => `${signed(x.measured.logit(i, answer.slot))} to ${said(answer.word)}`;
  return `: ${side(x.answer)}, ${side(minus)}`;
}

// The measures of one text at one position, for one token or, with `minus`, for its difference from another.
class Measured {
  text; position; answer; minus;

  constructor(text, position, part, answer, minus) {
    Object.assign(this, { text, position, answer, minus });
    this.raw = Number(part === "raw");
    this.one = 1 / text.vocabulary;
    this.target = (1 - this.one) * this.one;
  }

  // A number of a component, or of all sublayers (0) or heads (1), which are ensembles of different sizes.
  at(name, i) {
    return this.text.values[name][i][this.position];
  }

  logit(i, slot = this.answer.slot) {
    return this.text.values.logit[slot][i][this.position];
  }

  // A measure of component number i.
  value(measure, i) {
    if (measure === "logit") return this.logit(i) - (this.minus ? this.logit(i, this.minus.slot) : 0);
    if (measure === "cross_entropy") return this.at("expectation", i) - this.logit(i);
    const cut = Number(this.text.components[i].head);
    const [size, cross, mean, own] = [this.at("size", i), this.at("cross", i), this.at("mean", i), this.logit(i) * this.one];
    const [{ one, target }, power, all] = [this, this.at("power", cut), this.at("ensemble_mean", cut)];
    if (measure === "bias") return Math.max(target - 2 * own + size, 0) + this.raw * (mean - one) ** 2;
    if (measure === "diversity") return Math.max(size - 2 * cross + power, 0) + this.raw * (mean - all) ** 2;
    return target - power + 2 * (cross - own) + this.raw * (one ** 2 - all ** 2 + 2 * mean * (all - one));
  }

  // The zero baseline among sublayers (0) or heads (1).
  zero(measure, cut) {
    if (!MEASURES[measure].squared) return 0;
    const bias = this.target + this.raw * this.one ** 2;
    const diversity = this.at("power", cut) + this.raw * this.at("ensemble_mean", cut) ** 2;
    return { bias, diversity, net: bias - diversity }[measure];
  }

  // Difference from the zero baseline, by which components are colored and ranked.
  beyond(measure, i) {
    return this.value(measure, i) - this.zero(measure, Number(this.text.components[i].head));
  }
}

// Elements, numbers, axes and colors. All text goes in as text, never as HTML.

function put(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && !name.includes("-")) made[name] = value;
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function mark(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const label = (text, x, y, attributes = {}) => mark("text", { x, y, ...attributes }, text);
const hover = (text) => mark("title", {}, text);

// Three significant digits.
function number(x) {
  if (!Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const digits = size >= 1e5 || size < 1e-3 ? x.toExponential(1).replace("e", "·10^") : String(+x.toPrecision(3));
  return digits.replace(/\^\+?(-?\d+)/, (_, power) => raised(power)).replace("-", "−");
}
const raised = (power) => [...power].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d] ?? "⁻").join("");
const signed = (x) => (x > 0 ? "+" : "") + number(x);
const percent = (x) => (Number.isFinite(x) ? `${number(100 * x)} %` : "–");

// A token within a line: its spaces to be seen, cut to a length.
function quoted(token) {
  const shown = (token ?? "?").replace(/ /g, "␣");
  return shown.length > 24 ? `${[...shown].slice(0, 23).join("")}…` : shown;
}

// The color at t of a scale of five stops that the style sheet holds, so that it follows light and dark.
function shade(scale, t) {
  const at = Math.min(Math.max(t, 0), 1) * 4;
  const low = Math.min(Math.floor(at), 3);
  return `color-mix(in srgb, var(--${scale}-${low + 1}) ${(100 * (at - low)).toFixed(1)}%, var(--${scale}-${low}))`;
}

function quantile(values, q) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.round(q * (sorted.length - 1))] : NaN;
}

// value -> color for many values: diverging around 0 for net, else by size; ends at the 98th percentile of size.
// `most` < 1 leaves out the strong colors, for what is written upon.
function colors(values, diverging, log, most = 1) {
  const size = values.map(Math.abs);
  const high = quantile(size, 0.98) || 1;
  const low = log
    ? Math.min(
        quantile(
          size.filter((x) => x > 0),
          0.05,
        ) || high,
        high / 1.5,
      )
    : 0;
  const share = (x) => (log ? Math.log(Math.max(x, low) / low) / Math.log(high / low) : x / high);
  const color = (x) => {
    if (!Number.isFinite(x)) return "transparent";
    if (!diverging) return shade("seq", most * share(x));
    return shade("div", 0.5 + (most / 2) * Math.max(-1, Math.min(1, x / high)));
  };
  return { color, low: diverging ? -high : low, high };
}

// A scale from values to pixels, with round ticks.
function axis(low, high, from, to, log = false) {
  if (log) {
    [low, high] = [Math.log10(low), Math.log10(high)];
    if (high - low < 1) [low, high] = [(low + high) / 2 - 0.5, (low + high) / 2 + 0.5];
  } else if (!(high > low)) [low, high] = [low - 1, high + 1];
  const place = (x) => from + (((log ? Math.log10(x) : x) - low) / (high - low)) * (to - from);
  const ticks = [];
  if (log) {
    const step = Math.ceil((high - low) / 5);
    const name = (p) => (p === 0 ? "1" : p === 1 ? "10" : `10${raised(String(p))}`);
    for (let p = Math.ceil(low); p <= high; p += step) ticks.push([10 ** p, name(p)]);
    if (ticks.length < 2) {
      ticks.length = 0;
      for (let p = Math.floor(low); p <= high; p++) {
        for (const m of [1, 2, 5])
          if (Math.log10(m * 10 ** p) >= low && Math.log10(m * 10 ** p) <= high)
            ticks.push([m * 10 ** p, number(m * 10 ** p)]);
      }
    }
  } else {
    const rough = (high - low) / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    for (let k = Math.ceil(low / step); k * step <= high; k++)
      ticks.push([k * step, number(+(k * step).toPrecision(6))]);
  }
  return { place, ticks };
}

// Of positive numbers on a logarithmic axis, with some room; of signed ones on a linear one that holds 0.
function axisOf(values, from, to, log) {
  const known = values.filter((x) => Number.isFinite(x) && (!log || x > 0));
  if (!known.length) return axis(log ? 0.1 : -1, 1, from, to, log);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (log) return axis(low / 1.5, high * 1.5, from, to, true);
  const room = 0.06 * (Math.max(high, 0) - Math.min(low, 0));
  return axis(Math.min(low, 0) - (low < 0 ? room : 0), Math.max(high, 0) + room, from, to);
}

const UNIT = "logits²";
const isLog = (term) => term !== "net";
const MEANING = {
  loss: "the model's own cross-entropy of the token, in nats",
  centered: "without what a component adds to all tokens alike, which softmax cannot see",
  raw: "with what a component adds to all tokens alike",
  net: "net = bias − diversity: what a component adds to the error",
  bias: "bias: how far a component alone is from the right token",
  diversity: "diversity: how far a component is from the mean of all",
};

function drawing(host, height, name) {
  const width = Math.max(host.clientWidth, 200);
  const svg = mark("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  host.replaceChildren(svg);
  return { svg, width };
}

function gridlines(svg, { place, ticks }, left, right) {
  for (const [value, text] of ticks) {
    const y = place(value);
    svg.append(
      mark("line", { x1: left, x2: right, y1: y, y2: y, class: value === 0 ? "zero" : "rule" }),
      label(text, left - 6, y + 4, { class: "tick", "text-anchor": "end" }),
    );
  }
}

// Where a component that adds nothing stands, where the axis holds that.
function zeroLine(svg, x, term, cut, scale, left, right, top, bottom) {
  const value = x.text.zeroTerm(term, x.part, cut, x.position);
  if (!Number.isFinite(value) || (isLog(term) && value <= 0)) return;
  const y = scale.place(value);
  if (y < top || y > bottom) return;
  const title = hover(`a component that adds nothing: ${term} ${number(value)}`);
  svg.append(mark("line", { x1: left, x2: right, y1: y, y2: y, class: "even", "data-zero": value }, title));
}

// A stem with a dot for every component: from zero where numbers have a sign, from below where they are logarithmic.
function stems(svg, x, components, term, scale, left, step, bottom) {
  const { text, part, position, component } = x;
  const base = isLog(term) ? bottom : scale.place(0);
  components.forEach((i, k) => {
    const value = text.value(term, part, i, position);
    const at = left + (k + 0.5) * step;
    const y = Number.isFinite(value) && (!isLog(term) || value > 0) ? scale.place(value) : base;
    const chosen = i === component;
    const group = mark(
      "g",
      {
        class: chosen ? "stem chosen" : "stem",
        style: `--own: var(--${text.components[i].module})`,
        "data-component": text.labels[i],
        "data-term": term,
        "data-value": value,
      },
      hover(`${text.labels[i]}\n${x.part} ${term} ${number(value)} ${UNIT}`),
      mark("rect", { x: at - step / 2, y: 0, width: step, height: bottom + 4, class: "hit" }),
    );
    if (Number.isFinite(value)) {
      const line = { x1: at, x2: at, y1: base, y2: y, "stroke-width": Math.max(1, Math.min(9, step - 2)) };
      group.append(mark("line", line));
      if (chosen) group.append(mark("circle", { cx: at, cy: y, r: Math.min(6, step / 2 + 2.5) }));
    }
    svg.append(group);
  });
}

function nothing(host, sentence) {
  host.replaceChildren(put("p", { className: "none" }, sentence));
}

// What colors mean, below a grid.
function legend(svg, term, low, high, left, y, wide) {
  const steps = 24;
  for (let k = 0; k < steps; k++) {
    const fill = `fill: ${shade(isLog(term) ? "seq" : "div", k / (steps - 1))}`;
    svg.append(mark("rect", { x: left + (k * wide) / steps, y, width: wide / steps + 0.5, height: 8, style: fill }));
  }
  svg.append(
    label(number(low), left, y + 22, { class: "tick" }),
    label(number(high), left + wide, y + 22, { class: "tick", "text-anchor": "end" }),
  );
  if (!isLog(term)) svg.append(label("0", left + wide / 2, y + 22, { class: "tick", "text-anchor": "middle" }));
}

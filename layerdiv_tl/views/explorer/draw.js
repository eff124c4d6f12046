// Elements, numbers, axes and colors. All text goes in as text, never as HTML.

function put(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "list" && !name.includes("-")) made[name] = value;
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== false));
  return made;
}

function mark(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const label = (text, x, y, anchor = "start", kind = "tick") => mark("text", { x, y, class: kind, "text-anchor": anchor }, text);
const rect = (x, y, width, height, kind, more = {}) => mark("rect", { x, y, width, height, class: kind, ...more });
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

// A token by itself, its spaces to be seen, cut to a length; and the same within a sentence.
function quoted(token) {
  const shown = (token ?? "?").replace(/ /g, "␣");
  return shown.length > 24 ? `${[...shown].slice(0, 23).join("")}…` : shown;
}
const said = (token) => `“${quoted(token)}”`;

// The color at t of a scale from the page's own color to blue ("seq"), or from orange through it to blue ("div").
function shade(scale, t) {
  const share = scale === "seq" ? t : 2 * t - 1;
  const size = (100 * Math.min(Math.abs(share), 1)).toFixed(1);
  return `color-mix(in srgb, var(--${share < 0 ? "low" : "high"}) ${size}%, var(--paper))`;
}

// How far up a scale colors go under text, which must stay readable on them.
const UNDER = 0.38;

function quantile(values, q) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.round(q * (sorted.length - 1))] : NaN;
}

// A linear scale from values and 0 to pixels, with some room and round ticks.
function axisOf(values, from, to) {
  const known = values.filter(Number.isFinite);
  let [low, high] = [Math.min(...known, 0), Math.max(...known, 0)];
  const room = 0.06 * (high - low) || 1;
  [low, high] = [low - (low < 0 || high === 0 ? room : 0), high + room];
  const rough = (high - low) / 5.5; // two ticks at least
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) ticks.push([k * step, number(+(k * step).toPrecision(6))]);
  return { ticks, place: (x) => from + ((x - low) / (high - low)) * (to - from) };
}

const widthOf = (host) => Math.max(host.wide ?? host.clientWidth, 200);

function drawing(host, height, name) {
  const width = widthOf(host);
  const svg = mark("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  host.replaceChildren(svg);
  return { svg, width };
}

function gridlines(svg, { place, ticks }, left, right) {
  for (const [value, text] of ticks) {
    const y = place(value);
    svg.append(mark("line", { x1: left, x2: right, y1: y, y2: y, class: value === 0 ? "zero" : "rule" }), label(text, left - 6, y + 4, "end"));
  }
}

const nothing = (host, sentence, className = "none") => host.replaceChildren(put("p", { className }, sentence));

// A line of a list: a word, a bar from the middle whose length is a share, and a number. With `chosen` it is a button.
function entry(word, value, share, attributes = {}, ...more) {
  const { chosen, strong, ...known } = attributes;
  const bar = { style: `--wide: ${100 * Math.min(1, Math.abs(share))}%`, className: share < 0 ? "less" : "more" };
  const button = chosen === undefined ? {} : { type: "button", "aria-pressed": chosen };
  return put(
    chosen === undefined ? "div" : "button",
    { ...button, className: more.length ? "entry of-token" : "entry", "data-value": value, ...known },
    put("span", { className: strong ? "word right" : "word" }, ...[word].flat()),
    put("span", { className: "bar" }, put("i", bar)),
    put("span", { className: "number" }, signed(value)),
    ...more,
  );
}

// The entry of a component, which a click selects.
const componentEntry = (x, i, value, share) =>
  entry(x.text.labels[i], value, share, { chosen: i === x.component, "data-component": x.text.labels[i] });

// Lines in columns, each under its heading.
const columns = (...parts) =>
  put("div", { className: "columns" }, ...parts.map(([heading, lines]) => put("div", {}, heading && put("h3", {}, heading), ...lines)));

// The largest size among [name, value].
const largest = (pairs) => Math.max(...pairs.map(([, value]) => Math.abs(value)), 1e-30);
const chip = (...said) => put("span", { className: "chip" }, ...said);

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

// How far up a scale colors go under text, which must stay readable on them.
const UNDER = 0.38;

function quantile(values, q) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.round(q * (sorted.length - 1))] : NaN;
}

// value -> color, 0 at the zero baseline; ends at the 98th percentile of size.
function signedColors(values) {
  const high = quantile(values.map(Math.abs), 0.98) || 1;
  const color = (x) =>
    Number.isFinite(x) ? shade("div", 0.5 + Math.max(-1, Math.min(1, x / high)) / 2) : "transparent";
  return { color, high };
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
    const rough = (high - low) / 5.5; // two ticks at least
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

function drawing(host, height, name) {
  const width = Math.max(host.wide ?? host.clientWidth, 200);
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

// A stem with a dot for every component, from the zero baseline.
function stems(svg, x, components, measure, scale, left, step, bottom) {
  const { text, component, measured } = x;
  components.forEach((i, k) => {
    const value = measured.value(measure, i);
    const at = left + (k + 0.5) * step;
    const base = scale.place(measured.zero(measure, text.components[i].head ? 1 : 0));
    const y = Number.isFinite(value) ? scale.place(value) : base;
    const chosen = i === component;
    const group = mark(
      "g",
      {
        class: chosen ? "stem chosen" : "stem",
        style: `--own: var(--${text.components[i].module})`,
        "data-component": text.labels[i],
        "data-value": value,
      },
      hover(`${text.labels[i]}\n${MEASURES[measure].says(x)} ${number(value)} ${MEASURES[measure].unit}${sides(x, i)}`),
      mark("rect", { x: at - step / 2, y: 0, width: step, height: bottom + 4, class: "hit" }),
      mark("line", { x1: at, x2: at, y1: base, y2: y, "stroke-width": Math.max(1, Math.min(9, step - 2)) }),
    );
    if (chosen) group.append(mark("circle", { cx: at, cy: y, r: Math.min(6, step / 2 + 2.5) }));
    svg.append(group);
  });
}

function nothing(host, sentence) {
  host.replaceChildren(put("p", { className: "none" }, sentence));
}

// The color scale below a grid: below, at and above the zero baseline.
function legend(svg, high, zero, left, y, wide) {
  const steps = 24;
  for (let k = 0; k < steps; k++) {
    const fill = `fill: ${shade("div", k / (steps - 1))}`;
    svg.append(mark("rect", { x: left + (k * wide) / steps, y, width: wide / steps + 0.5, height: 8, style: fill }));
  }
  const ends = [number(zero - high), number(zero), number(zero + high)];
  ["start", "middle", "end"].forEach((anchor, n) =>
    svg.append(label(ends[n], left + (n * wide) / 2, y + 22, { class: "tick", "text-anchor": anchor })),
  );
}

// A button of a list with a bar from the middle.
function entry(x, i, value, share) {
  const { text } = x;
  const wide = `${100 * Math.min(1, Math.abs(share))}%`;
  const inner = { style: `--wide: ${wide}; background: var(--div-${share < 0 ? 1 : 3})`, className: share < 0 ? "less" : "more" };
  const known = { "data-component": text.labels[i], "data-value": value, "aria-pressed": i === x.component };
  return put(
    "button",
    { type: "button", className: "entry", ...known },
    put("span", { className: "word plain" }, text.labels[i]),
    put("span", { className: "bar both" }, put("i", inner)),
    put("span", { className: "number" }, signed(value)),
  );
}

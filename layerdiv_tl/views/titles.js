// Wraps a figure's title and subtitle, which Python wrapped for 700 pixels, for a narrower window.
"use strict";

// A blank before a break marks a break that Python's wrapping made.
function wrap(text, columns) {
  const lines = [];
  for (const line of (text ?? "").replaceAll(" <br>", " ").split("<br>")) {
    let current = "";
    for (const word of line.split(" ")) {
      if (current && current.length + word.length >= columns) {
        lines.push(current);
        current = word;
      } else current += (current && " ") + word;
    }
    lines.push(current);
  }
  return lines.join("<br>");
}

/** Change a figure's layout, and those of its buttons, in place. */
function fitTitles(layout, width) {
  if (width >= 690 || !layout.title?.text) return;
  const whole = { title: layout.title.text, subtitle: layout.title.subtitle?.text ?? "" };
  whole.pad = layout.title.pad.t;
  const count = (text) => text.split("<br>").length;
  const fitted = (own) => {
    const title = own["title.text"] ?? whole.title;
    const subtitle = own["title.subtitle.text"] ?? whole.subtitle;
    const wrapped = [wrap(title, width / 10), wrap(subtitle, width / 8)];
    const more = count(wrapped[0]) - count(title);
    const taller = 22 * more + 18 * (count(wrapped[1]) - count(subtitle));
    return {
      "title.text": wrapped[0],
      "title.subtitle.text": wrapped[1],
      // Plotly places a title of several lines, however many, 12 pixels higher than one of one line.
      "title.pad.t": (own["title.pad.t"] ?? whole.pad) + (more && count(title) === 1 ? 12 : 0),
      "margin.t": (own["margin.t"] ?? layout.margin.t) + taller,
      height: (own.height ?? layout.height) + taller,
    };
  };
  for (const menu of layout.updatemenus ?? []) {
    for (const { args } of menu.buttons) args[1] = { ...args[1], ...fitted(args[1]) };
  }
  const own = fitted({});
  layout.title.text = own["title.text"];
  if (layout.title.subtitle) layout.title.subtitle.text = own["title.subtitle.text"];
  layout.title.pad.t = own["title.pad.t"];
  layout.margin.t = own["margin.t"];
  layout.height = own.height;
}

// The numbers of a text, as Python packed them (data.py).

const KINDS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

// Bytes as a notebook sends them, or those of an element of the page, which are decoded when they are wanted.
function bytesOf(blob) {
  if (typeof blob !== "string") return blob;
  return Uint8Array.from(atob(document.getElementById(blob).textContent), (letter) => letter.charCodeAt(0));
}

// Rows of numbers, and rows of rows for more axes.
function rowsOf(values, shape) {
  const [count, ...inner] = shape;
  const size = values.length / count;
  return inner.length ? Array.from({ length: count }, (_, i) => rowsOf(values.subarray(i * size, (i + 1) * size), inner)) : values;
}

// -> {header, arrays}: a JSON header and arrays, indexed by all their axes, out of deflated bytes.
async function unpack(blob) {
  const stream = new Blob([bytesOf(blob)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const { name, type, shape, start } of header.arrays)
    arrays[name] = rowsOf(new KINDS[type](buffer, 4 + length + start, shape.reduce((a, b) => a * b, 1)), shape);
  return { header, arrays };
}

// One text. Position p is the prediction of token p + 1 after token p.
class TextNumbers {
  tokens; components; ids; words; attention; // of the header (data.py), but for the last

  constructor({ header, arrays }) {
    Object.assign(this, header);
    this.values = arrays;
    this.length = this.tokens.length;
    this.labels = this.components.map((c) => c.label);
    this.index = new Map(this.labels.map((label, i) => [label, i]));
    const which = (head) => this.components.flatMap((c, i) => (c.head === head ? [i] : []));
    this.sublayers = which(false);
    this.heads = which(true);
    // Layers that have heads, in stream order (a reused layer once for every use), and the heads of each.
    this.rows = [...new Set(this.heads.map((i) => this.components[i].row))];
    this.inRow = this.rows.map((row) => this.heads.filter((i) => this.components[i].row === row));
    this.looked = new Set(); // positions whose promoted tokens are known, of some components at least
    this.promoted = new Map(); // position and component -> the tokens that it promotes and suppresses
    this.traced = new Map(); // position and component -> the source tokens of a head
    this.effects = new Map(); // position, two tokens and a component -> what ablating it does
  }

  // The tokens that contributions are measured to at a position, the right one first; each once.
  answers(position) {
    const all = this.values.candidate.map((words, slot) => {
      const [word, probability] = [words[position], this.values.probability[slot][position]];
      return { slot, id: this.ids[word], word: this.words[word], probability, right: slot === 0 };
    });
    return all.filter(({ id }, slot) => id >= 0 && all.findIndex((answer) => answer.id === id) === slot);
  }

  // Whether contributions to a token were measured anywhere in the text.
  measures(id) {
    const word = this.ids.indexOf(id);
    return word >= 0 && this.values.candidate.some((words) => words.includes(word));
  }

  // The answer with an id; for null, or an id that was not measured here, the right or likeliest one.
  answer(id, position) {
    const answers = this.answers(position);
    return answers.find((answer) => answer.id === id) ?? answers[0];
  }

  // What follows a token, as far as it is known.
  next(position) {
    const [first] = this.answers(position);
    return first.right ? first.word : null;
  }

  // A head's attention weight on the earlier of two positions, from the later one.
  weight(head, one, other) {
    const [key, query] = one < other ? [one, other] : [other, one];
    return this.attention[head][(query * (query + 1)) / 2 + key] / 255;
  }

  // Take in what was looked up: attention, what components promote, what ablating them does, or heads' source tokens.
  take(kind, { header, arrays }) {
    if (kind === "attention") this.attention = arrays.attention;
    if (kind === "promoted") {
      const { positions, words } = header;
      positions.forEach((position) => this.looked.add(position));
      arrays.component.forEach((component, row) => {
        const position = positions[Math.floor((row * positions.length) / arrays.component.length)];
        const pairs = Array.from(arrays.word[row], (word, i) => [words[word], arrays.logit[row][i]]);
        const half = pairs.length / 2;
        this.promoted.set(`${[position, component]}`, { promotes: pairs.slice(0, half), suppresses: pairs.slice(half) });
      });
    }
    if (kind === "effects") {
      const { position, answers, rows, why } = header;
      for (const name of why ? header.asked : []) this.effects.set(`${[position, ...answers, name]}`, { why });
      for (const row of rows) this.effects.set(`${[position, ...answers, row.label]}`, row);
      if (!this.effectsAt && rows.length) this.effectsAt = header;
    }
    if (kind === "sources") {
      this.untraced = header.why; // one reason for all heads
      const { place = [], source, logit, gap } = arrays;
      place.forEach((of, row) => this.traced.set(`${of}`, { source: source[row], logit: logit[row], gap: gap[row] }));
    }
  }

  // What a head contributes to a candidate, or to it minus another, by source token, in the order of size: {sources:
  // [position, logits], rest, gap}; {why} where it cannot be told, undefined where nobody looked.
  sourcesOf(component, position, slot, minus) {
    if (this.untraced) return { why: this.untraced };
    const found = this.traced.get(`${[position, component]}`);
    if (!found) return undefined;
    const [rest, ...listed] = [...found.logit.slice(-1), ...found.logit].map((to) => to[slot] - (minus === undefined ? 0 : to[minus]));
    const sources = Array.from(found.source, (key, part) => [key, listed[part]]).filter(([key]) => key >= 0);
    sources.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    return { sources, rest, gap: found.gap };
  }
}

// The numbers of a text, as Python packed them (pack.py).

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
  tokens; components; ids; words; offered; attention; // of the header (pack.py), but for the last

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
    this.found = new Map(); // kind, position, component (and two tokens) -> what was looked up
    this.has = {}; // kind -> what a page has of it
  }

  // The tokens that contributions are measured to at a position, the right one first; each once.
  answers(position) {
    const all = this.values.candidate.map((words, slot) => {
      const [word, probability] = [words[position], this.values.probability[slot][position]];
      return { slot, id: this.ids[word], word: this.words[word], probability, right: slot === 0 && this.isKnown(position) };
    });
    return all.filter(({ id }, slot) => all.findIndex((answer) => answer.id === id) === slot);
  }

  // The answer with an id; for null, or an id that was not measured here, the right or likeliest one.
  answer(id, position) {
    const answers = this.answers(position);
    return answers.find((answer) => answer.id === id) ?? answers[0];
  }

  // Whether the right token is known, and whether contributions to a token were measured anywhere in the text.
  isKnown(position) {
    return Number.isFinite(this.values.loss[position]);
  }

  measures(id) {
    const word = this.ids.indexOf(id);
    return word >= 0 && this.values.candidate.some((words) => words.includes(word));
  }

  // A head's attention weight from a query on a key.
  weight(head, query, key) {
    return key > query ? 0 : this.attention[head][(query * (query + 1)) / 2 + key] / 255;
  }

  // Take in what was looked up: attention, what components promote, what ablating them does, or heads' source tokens.
  take(kind, { header, arrays }) {
    this.has[kind] = header;
    const keep = (of, what) => this.found.set(`${[kind, ...of]}`, what);
    if (kind === "attention") this.attention = arrays.attention;
    if (kind === "promoted")
      arrays.place.forEach((of, row) => {
        const pairs = Array.from(arrays.word[row], (word, i) => [header.words[word], arrays.logit[row][i]]);
        const half = pairs.length / 2;
        keep(of, { promotes: pairs.slice(0, half), suppresses: pairs.slice(half) });
      });
    if (kind === "effects") {
      const of = (label) => [header.position, this.index.get(label), ...header.answers];
      for (const label of header.why ? header.asked : []) keep(of(label), header);
      for (const row of header.rows) keep(of(row.label), row);
    }
    if (kind === "sources")
      (arrays.place ?? []).forEach((of, row) => keep(of, { source: arrays.source[row], logit: arrays.logit[row] }));
  }
}

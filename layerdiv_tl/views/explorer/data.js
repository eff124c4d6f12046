// The numbers of a text, as Python packed them (data.py).

const KINDS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

// Bytes as a notebook sends them, or those of an element of the page, which are decoded when they are wanted.
function bytesOf(blob) {
  if (typeof blob !== "string") return blob;
  return Uint8Array.from(atob(document.getElementById(blob).textContent), (letter) => letter.charCodeAt(0));
}

// -> {header, arrays}: a JSON header and typed arrays out of deflated bytes.
async function unpack(blob) {
  const stream = new Blob([bytesOf(blob)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const { name, type, shape, start } of header.arrays)
    arrays[name] = new KINDS[type](buffer, 4 + length + start, shape.reduce((a, b) => a * b, 1));
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
    this.candidates = arrays.candidate.length / this.length;
    this.looked = new Map(); // position -> what components promote there
    this.traced = new Map(); // position and component -> the source tokens of a head
    this.effects = new Map(); // position, two tokens and a component -> what ablating it does
  }

  // The tokens that contributions are measured to at a position, the right one first; each once.
  answers(position) {
    const found = [];
    for (let slot = 0; slot < this.candidates; slot++) {
      const at = slot * this.length + position;
      const word = this.values.candidate[at];
      const id = this.ids[word];
      if (id < 0 || found.some((answer) => answer.id === id)) continue;
      found.push({ slot, id, word: this.words[word], probability: this.values.probability[at], right: slot === 0 });
    }
    return found;
  }

  // Whether contributions to a token were measured anywhere in the text.
  measures(id) {
    const word = this.ids.indexOf(id);
    return word >= 0 && this.values.candidate.includes(word);
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

  // A head's attention weight, at a query, on a key.
  weight(head, query, key) {
    const rows = (this.length * (this.length + 1)) / 2;
    return this.attention[head * rows + (query * (query + 1)) / 2 + key] / 255;
  }

  // Take in what was looked up: what components promote, what ablating them does, or heads' source tokens.
  take(kind, { header, arrays }) {
    if (kind === "promoted") header.positions.forEach((position, row) => this.looked.set(position, { row, header, arrays }));
    if (kind === "effects") {
      const { position, answers, rows, why } = header;
      for (const name of why ? header.asked : []) this.effects.set(`${[position, ...answers, name]}`, { why });
      for (const row of rows) this.effects.set(`${[position, ...answers, row.label]}`, row);
      if (!this.effectsAt && rows.length) this.effectsAt = header;
    }
    if (kind === "sources") {
      this.untraced = header.why; // one reason for all heads
      arrays.gap?.forEach((_, row) => this.traced.set(`${arrays.place.subarray(2 * row, 2 * row + 2)}`, { row, arrays }));
    }
  }

  // What a head contributes to a candidate, or to it minus another, by source token, in the order of size: {sources:
  // [position, logits], rest, bias, gap}; {why} where it cannot be told, undefined where nobody looked.
  sourcesOf(component, position, slot, minus) {
    if (this.untraced) return { why: this.untraced };
    const entry = this.traced.get(`${[position, component]}`);
    if (!entry) return undefined;
    const { row, arrays } = entry;
    const listed = arrays.source.length / arrays.gap.length;
    const wide = arrays.logit.length / arrays.gap.length / (listed + 2);
    const value = (part) => {
      const at = (row * (listed + 2) + part) * wide;
      return arrays.logit[at + slot] - (minus === undefined ? 0 : arrays.logit[at + minus]);
    };
    const tokens = [...arrays.source.subarray(row * listed, (row + 1) * listed)];
    const sources = tokens.map((key, part) => [key, value(part)]).filter(([key]) => key >= 0);
    sources.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    return { sources, rest: value(listed), bias: value(listed + 1), gap: arrays.gap[row] };
  }

  // {promotes, suppresses}: [token, logit] each; null where it was not looked up, false where others were.
  promoted(component, position) {
    const entry = this.looked.get(position);
    if (!entry) return null;
    const { row, header, arrays } = entry;
    const count = arrays.component.length / header.positions.length;
    const own = arrays.component.subarray(row * count, (row + 1) * count).indexOf(component);
    if (own < 0) return false;
    const wide = arrays.word.length / arrays.component.length;
    const start = (row * count + own) * wide;
    const pairs = Array.from({ length: wide }, (_, i) => [header.words[arrays.word[start + i]], arrays.logit[start + i]]);
    return { promotes: pairs.slice(0, wide / 2), suppresses: pairs.slice(wide / 2) };
  }
}

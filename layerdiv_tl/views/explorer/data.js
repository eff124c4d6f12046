// The numbers of a text, as Python packed them (data.py).

const KINDS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

// -> {header, arrays}: a JSON header and typed arrays out of deflated bytes.
async function unpack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const { name, type, shape, start } of header.arrays) {
    const size = shape.reduce((a, b) => a * b, 1);
    arrays[name] = new KINDS[type](buffer, 4 + length + start, size);
  }
  return { header, arrays };
}

// One text. Position p is the prediction of token p + 1 after token p.
class Text {
  constructor({ header, arrays }) {
    Object.assign(this, header);
    this.values = arrays;
    this.length = this.tokens.length;
    this.labels = this.components.map((c) => c.label);
    this.index = new Map(this.labels.map((label, i) => [label, i]));
    this.sublayers = this.components.flatMap((c, i) => (c.head ? [] : [i]));
    this.heads = this.components.flatMap((c, i) => (c.head ? [i] : []));
    // Layers that have heads, in stream order (a reused layer once for every use), and the heads of each.
    this.rows = [...new Set(this.heads.map((i) => this.components[i].row))];
    this.inRow = this.rows.map((row) => this.heads.filter((i) => this.components[i].row === row));
    this.looked = new Map(); // position -> what components promote there
  }

  value(term, part, component, position) {
    const name = term === "logit" ? "logit" : `${term}_${part}`;
    return this.values[name][component * this.length + position];
  }

  // Summed over all components of the cut that a component belongs to: sublayers, or heads.
  sum(term, part, component, position) {
    const cut = this.components[component].head ? 1 : 0;
    return this.values[`sum_${term}_${part}`][cut * this.length + position];
  }

  // The same of a component that adds nothing, among sublayers (0) or heads (1).
  zeroTerm(term, part, cut, position) {
    return this.values[`zero_${term}_${part}`][cut * this.length + position];
  }

  // What a position is colored by: its loss, or a term's mean over the sublayers.
  colorValue(color, part, position) {
    if (color === "loss") return this.values.loss[position];
    return this.values[`sum_${color}_${part}`][position] / this.counts[0];
  }

  // A head's attention weights, at a position, on every token up to there.
  attentionTo(component, position) {
    const rows = (this.length * (this.length + 1)) / 2;
    const start = this.heads.indexOf(component) * rows + (position * (position + 1)) / 2;
    return Array.from(this.values.attention.subarray(start, start + position + 1), (weight) => weight / 255);
  }

  // [component, cosine] of those that write most like a component (sign > 0) or most against it.
  nearest(component, sign) {
    const { near, cosine } = this.values;
    const wide = near.length / this.components.length;
    const pairs = [];
    for (let i = component * wide; i < (component + 1) * wide; i++) {
      if (near[i] >= 0 && cosine[i] * sign > 0) pairs.push([near[i], cosine[i]]);
    }
    return pairs;
  }

  // Take in what components promote at some positions.
  look({ header, arrays }) {
    header.positions.forEach((position, row) => this.looked.set(position, { row, header, arrays }));
  }

  // {promotes, suppresses}: [token, logit] each; null where it was not looked up.
  promoted(component, position) {
    const entry = this.looked.get(position);
    if (!entry) return null;
    const { row, header, arrays } = entry;
    const wide = arrays.word.length / (header.positions.length * this.components.length);
    const start = (row * this.components.length + component) * wide;
    const pairs = [];
    for (let i = start; i < start + wide; i++) pairs.push([header.words[arrays.word[i]], arrays.logit[i]]);
    return { promotes: pairs.slice(0, wide / 2), suppresses: pairs.slice(wide / 2) };
  }

  next(position) {
    return position + 1 < this.length ? this.tokens[position + 1] : this.target;
  }
}

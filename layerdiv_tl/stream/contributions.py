"""Direct logit contributions: the parts that sum to the logits."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component, Unit
from ..components import positions as component_positions
from ..errors import InputError
from ..results import Result
from . import prompts as reading
from .anatomy import Anatomy
from .capture import Firing, Pass, batches, pad, quiet, run
from .loading import load_model

if TYPE_CHECKING:
    import pandas as pd

# Relative to max Σ|u_i|. float32 models measure 1e-7 to 1e-6, half-precision ones about 1e-2.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}

# Rows worked on at once behind a forward pass: it bounds the float64 copies (61 × 576 numbers a row on
# the default model), which would otherwise outgrow the pass itself where prompts are short.
ROWS = 32


@dataclass(frozen=True, eq=False)
class Contributions(Result):
    """What every component adds to the logit of every option: Σ over components = logits (Eq. 3).

    values
        float64 `[example, component, option]`, in logits; rows in stream order.
    components
        The names of the rows.
    model_logits
        float64 `[example, option]`, what the model returns. It differs from `logits` by more than
        rounding only where the model caps its logits (`soft_cap`).
    option_ids, options
        Token ids `[example, option]`, and the texts: K of them, or K for every example.
    token_ids, lengths, positions
        The prompts' ids one after another, their lengths, and the position read in each.
    junction_scale, junctions
        float64 `[example, junction]`: the final norm's statistic of the stream after each junction's
        component, divided by that of the whole stream (the last is 1).
    identity_gap, absolute_gap
        max |Σ u_i − logits| / max Σ|u_i| over examples and options (MATHS 10), and the same in logits,
        both against the model's own logits (before a soft-cap) and for all components.
    complete
        False for a sub-ensemble made by `select`, whose `logits` are its own sum.
    soft_cap
        The value at which the model caps its logits, or None.
    model, unit
        The model's name and how finely it was cut.
    """

    values: Float[np.ndarray, "example component option"]
    components: tuple[Component, ...]
    model_logits: Float[np.ndarray, "example option"]
    option_ids: Int[np.ndarray, "example option"]
    options: tuple
    token_ids: Int[np.ndarray, " token"]
    lengths: Int[np.ndarray, " example"]
    positions: Int[np.ndarray, " example"]
    junction_scale: Float[np.ndarray, "example junction"]
    junctions: tuple[Component, ...]
    identity_gap: float
    absolute_gap: float
    complete: bool
    soft_cap: float | None
    model: str
    unit: Unit

    @property
    def logits(self) -> Float[np.ndarray, "example option"]:
        """The sum over the components here, `[example, option]`; before a soft-cap where there is one."""
        return self.values.sum(1)

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of each prompt."""
        cuts = np.split(self.token_ids, np.cumsum(self.lengths)[:-1])
        return tuple(tuple(int(i) for i in ids) for ids in cuts)

    @property
    def shared_options(self) -> tuple[str, ...] | None:
        """The options' texts where all examples share them, else None."""
        return self.options if isinstance(self.options[0], str) else None

    def select(
        self,
        *,
        kind: str | Iterable[str] | None = None,
        layer: int | Iterable[int] | None = None,
        index: int | Iterable[int] | None = None,
        use: int | Iterable[int] | None = None,
        module: str | Iterable[str] | None = None,
        label: str | Iterable[str] | None = None,
    ) -> Contributions:
        """The sub-ensemble of the components that meet every given condition.

        Raises InputError where nothing is left. `c.select(kind="mlp", layer=range(4))`.
        """
        keep = component_positions(
            self.components, kind=kind, layer=layer, index=index, use=use, module=module, label=label
        )
        return self._keep(keep)

    def _keep(self, rows: list[int]) -> Contributions:
        if rows == list(range(len(self.components))):
            return self
        kept = tuple(self.components[i] for i in rows)
        return replace(self, values=self.values[:, rows], components=kept, complete=False)

    def frame(self) -> pd.DataFrame:
        """One row per example, component and option: its contribution in logits."""
        import pandas as pd

        n, members, k = self.values.shape
        shared = self.shared_options
        texts = np.tile(np.array(shared), n) if shared else np.array(self.options).reshape(-1)
        texts = np.repeat(texts.reshape(n, 1, k), members, axis=1).reshape(-1)

        def per_component(name: str) -> Any:
            return np.tile(np.repeat([getattr(c, name) for c in self.components], k), n)

        frame = pd.DataFrame(
            {
                "example": np.repeat(np.arange(n), members * k),
                "component": per_component("label"),
                "kind": per_component("kind"),
                "layer": pd.array(per_component("layer").tolist(), dtype="Int64"),
                "index": pd.array(per_component("index").tolist(), dtype="Int64"),
                "use": pd.array(per_component("use").tolist(), dtype="Int64"),
                "option": texts,
                "contribution": self.values.reshape(-1),
            }
        )
        frame.attrs["units"] = {"contribution": "logits"}
        frame.attrs["identity_gap"] = self.identity_gap
        return frame

    def __repr__(self) -> str:
        n, members, k = self.values.shape
        part = "" if self.complete else ", a sub-ensemble"
        return (
            f"Contributions({self.model}: {n} examples × {members} components × {k} options{part}; "
            f"identity gap {self.identity_gap:.1e}, {self.absolute_gap:.1e} logits)"
        )


def contributions(
    model: Any,
    prompts: Any,
    options: Any,
    unit: Unit = "sublayer",
    position: Any = "last",
    components: Iterable[str | Component] | None = None,
    batch_tokens: int = 4096,
) -> Contributions:
    """Take a model's logits apart into the direct contributions of its components (Eq. 2-3).

    u_i = W_U (gain · centre(z_i)) / σ, with z_i what component i wrote to the residual stream and σ
    the final norm's statistic of the whole stream; what the read-out adds by itself is `constant`.

    model
        A `Model`, or anything `load_model` takes.
    prompts
        Texts, or lists of token ids, which are taken as they are.
    options
        K answer tokens whose logits are wanted: strings exactly as written (" Yes" with its space) that
        are single tokens, or ids, or one list of K per prompt.
    unit
        "sublayer": embedding, attentions, MLPs; "head": attentions cut into heads.
    position
        Where the logits are read: "last", an int counted in each prompt's own tokens (negative from
        the end), or one int per prompt.
    components
        Labels or components to keep; None keeps all. All are computed either way, to check the sum.
    batch_tokens
        The most padded tokens in one forward pass. It changes speed and memory only.

    Raises InputError for input that cannot be used, for weights that give no finite number, and for a
    model whose components do not sum to its logits.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> c = ld.contributions(tiny, [[1, 2, 3], [4, 5]], options=[7, 9])
    >>> [component.label for component in c.components]
    ['embed', 'L0.attn', 'L0.mlp', 'L1.attn', 'L1.mlp']
    >>> c.values.shape, bool(c.identity_gap < 1e-6)
    ((2, 5, 2), True)
    """
    from tqdm.auto import tqdm

    model = load_model(model)
    anatomy = model.anatomy
    if unit not in ("sublayer", "head"):
        raise InputError(f"unit={unit!r} is unknown: use 'sublayer' or 'head'.")
    if not isinstance(batch_tokens, int) or batch_tokens < 1:
        raise InputError(f"batch_tokens={batch_tokens!r} must be a whole number of at least 1.")
    ids = reading.encode(model, prompts)
    lengths = [len(row) for row in ids]
    at = reading.positions(position, lengths)
    option_ids, option_texts = reading.options(model, options, len(ids))
    keep = _wanted(components, anatomy.components(unit))

    parts: list[_Part] = []
    with quiet(anatomy), tqdm(total=len(ids), desc=model.name, unit="prompt", delay=2, leave=False) as progress:
        readout = _Readout(anatomy, option_ids)
        for rows in batches(lengths, batch_tokens):
            tokens, mask = pad([ids[row] for row in rows])
            done = run(anatomy, tokens, mask, torch.as_tensor(at[rows]), heads=unit == "head")
            for start in range(0, len(rows), ROWS):
                some = slice(start, start + ROWS)
                parts.append(_part(anatomy, readout, done.rows(some), np.array(rows[some]), option_ids, unit))
            progress.update(len(rows))

    names = parts[0].components
    if any(part.components != names for part in parts):
        raise InputError(
            f"{model.name} ran its layers a different number of times for different prompts, so they have no "
            "common components: give prompts that run alike, or one at a time."
        )
    order = np.argsort(np.concatenate([part.rows for part in parts]))

    def collect(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    values, summed = collect("values"), collect("unembedded")
    absolute = np.abs(values.sum(1) - summed).max()
    relative = absolute / max(np.abs(values).sum(1).max(), np.finfo(float).tiny)
    _check_closure(anatomy, model.name, relative, parts)
    result = Contributions(
        values=values,
        components=names,
        model_logits=collect("logits"),
        option_ids=option_ids,
        options=option_texts,
        token_ids=np.concatenate([np.array(row, dtype=np.int64) for row in ids]),
        lengths=np.array(lengths, dtype=np.int64),
        positions=at,
        junction_scale=collect("junction_scale"),
        junctions=parts[0].junctions,
        identity_gap=float(relative),
        absolute_gap=float(absolute),
        complete=True,
        soft_cap=anatomy.soft_cap,
        model=model.name,
        unit=unit,
    )
    return result if keep is None else result._keep([i for i, c in enumerate(names) if c in keep])


@dataclass(frozen=True, eq=False)
class _Part:
    """The numbers of one batch; `rows` are its examples."""

    rows: Int[np.ndarray, " row"]
    components: tuple[Component, ...]
    values: Float[np.ndarray, "row component option"]
    unembedded: Float[np.ndarray, "row option"]
    logits: Float[np.ndarray, "row option"]
    junction_scale: Float[np.ndarray, "row junction"]
    junctions: tuple[Component, ...]
    stream_gap: float


class _Readout:
    """Option directions: a stream vector x contributes `x @ direction / σ` to an option's logit.

    Gain, centring and logit multiplier are folded into the directions, once for every distinct option
    token; `index` `[example, option]` says which direction belongs where.
    """

    def __init__(self, anatomy: Anatomy, option_ids: Int[np.ndarray, "example option"]) -> None:
        distinct, index = np.unique(option_ids, return_inverse=True)
        rows, bias = anatomy.unembed_rows(torch.as_tensor(distinct))
        rows = rows.double().cpu() * anatomy.logit_multiplier
        self.scale = anatomy.scale
        self.index = torch.as_tensor(index.reshape(option_ids.shape))
        self.directions: Float[Tensor, "token d"] = anatomy.norm.fold(rows)
        self.constant: Float[Tensor, " token"] | None = None
        if anatomy.has_constant():
            self.constant = torch.zeros(len(rows), dtype=torch.float64)
            if anatomy.norm.bias is not None:
                self.constant += rows @ anatomy.norm.bias
            if bias is not None:
                self.constant += bias.double().cpu() * anatomy.logit_multiplier

    def of(self, rows: Int[Tensor, " row"]) -> _Readout:
        """The read-out of some examples only, with no direction that they do not need."""
        part = copy(self)
        needed, part.index = self.index[rows].unique(return_inverse=True)
        part.directions = self.directions[needed]
        part.constant = None if self.constant is None else self.constant[needed]
        return part

    def __call__(self, x: Float[Tensor, "row part d"]) -> Float[Tensor, "row part option"]:
        """`x @ direction` for each row's own options; the division by σ is the caller's."""
        return self.pick(x @ self.directions.T)

    def heads(self, firing: Firing) -> Float[Tensor, "row part option"]:
        """The same for the heads of one attention, and last for their bias where there is one."""
        heads = firing.write.heads
        assert heads is not None
        assert firing.z is not None
        weight, bias = heads.projection()
        directions = self.directions * self.scale
        offset = None
        if heads.post is not None:
            offset = None if heads.post.bias is None else directions @ heads.post.bias
            directions = heads.post.fold(directions)
        # Option directions are taken back through W_O: K products for each layer instead of one per row.
        wide = torch.promote_types(weight.dtype, torch.float32)
        through = directions.to(weight.device, wide) @ weight.to(wide).T
        split = through.double().cpu().unflatten(1, (heads.count, -1))  # [token, head, d_head]
        z = firing.z.double().cpu().unflatten(1, (heads.count, -1))
        parts = torch.einsum("rhe,the->rht", z, split)
        if bias is not None:
            parts = torch.cat([parts, (directions @ bias.double().cpu()).expand(len(z), 1, -1)], 1)
        if heads.post is not None:
            assert firing.post_in is not None
            parts = parts / heads.post.statistic(firing.post_in.double().cpu())[:, None, None]
            if offset is not None:
                rest = parts[:, heads.count :].sum(1, keepdim=True) + offset
                parts = torch.cat([parts[:, : heads.count], rest], 1)
        return self.pick(parts)

    def pick(self, per_token: Float[Tensor, "row part token"]) -> Float[Tensor, "row part option"]:
        return per_token.gather(2, self.index[:, None].expand(-1, per_token.shape[1], -1))


def _part(
    anatomy: Anatomy, readout: _Readout, done: Pass, rows: Int[np.ndarray, " row"], option_ids: np.ndarray, unit: Unit
) -> _Part:
    """Contributions of one batch, in float64 on the CPU."""
    readout = readout.of(torch.as_tensor(rows))
    names: list[Component] = [Component("embed")]
    junctions: list[Component] = [Component("embed")]
    written = [done.embed]
    if done.pos_embed is not None:
        names.append(Component("pos_embed"))
        junctions.append(names[-1])
        written.append(done.pos_embed)
    written += [firing.wrote for firing in done.firings]
    stream = torch.stack(written, 1).double().cpu()
    final = done.final.double().cpu()
    sigma = anatomy.norm.statistic(final)[:, None, None]
    whole = readout(stream)

    first = len(written) - len(done.firings)
    values = [whole[:, :first]]
    uses: dict[int, int] = {}
    reused = len(done.firings) > len({id(firing.write) for firing in done.firings})
    for row, firing in enumerate(done.firings, start=first):
        uses[id(firing.write)] = uses.get(id(firing.write), 0) + 1
        use = uses[id(firing.write)] if reused else None
        junctions.append(Component(firing.write.kind, firing.write.layer, use=use))
        names += anatomy.rows_of(firing.write, use, unit)
        values.append(readout.heads(firing) if firing.z is not None else whole[:, row : row + 1])
    u = torch.cat(values, 1) / sigma
    if readout.constant is not None:
        names.append(Component("constant"))
        u = torch.cat([u, readout.constant[readout.index][:, None]], 1)

    options = torch.as_tensor(option_ids[rows]).to(done.logits.device)
    before_cap = done.unembedded.gather(1, options).double().cpu() * anatomy.logit_multiplier
    logits = done.logits.gather(1, options).double().cpu()
    _check_finite(junctions, stream, u, logits)
    scale = anatomy.norm.statistic(stream.cumsum(1)) / sigma[:, :, 0]
    remainder = (stream.sum(1) - final).abs().max() / final.abs().max()
    return _Part(
        rows=rows,
        components=tuple(names),
        values=u.numpy(),
        unembedded=before_cap.numpy(),
        logits=logits.numpy(),
        junction_scale=scale.numpy(),
        junctions=tuple(junctions),
        stream_gap=float(remainder),
    )


def _wanted(components: Iterable[str | Component] | None, known: tuple[Component, ...]) -> set[Component] | None:
    """The components to keep; a label of a component that does not exist is an error before the run."""
    if components is None:
        return None
    given = [components] if isinstance(components, str | Component) else list(components)
    wanted = {c if isinstance(c, Component) else Component.parse(c) for c in given}
    # A reused layer's uses are known only after a run, so only layer and kind are looked up here.
    unknown = [c for c in wanted if replace(c, use=None) not in known]
    if unknown or not wanted:
        missing = unknown[0].label if unknown else "an empty list"
        raise InputError(f"components asks for {missing}, which this model does not have at this unit.")
    return wanted


def _check_finite(
    writers: list[Component],
    stream: Float[Tensor, "row part d"],
    u: Float[Tensor, "row component option"],
    logits: Tensor,
) -> None:
    if u.isfinite().all() and logits.isfinite().all():
        return
    finite = stream.isfinite().all(2).all(0).tolist()
    # One broken write breaks the norm's statistic, hence every contribution: look at what was written.
    first = next((writer.label for writer, fine in zip(writers, finite, strict=True) if not fine), "the read-out")
    raise InputError(
        f"the model gives numbers that are not finite, first in {first}: its weights or its precision are "
        "broken (NaN weights, an overflow in float16), so nothing is computed."
    )


def _check_closure(anatomy: Anatomy, name: str, gap: float, parts: list[_Part]) -> None:
    """The parts must sum to the whole: refuse with the place where the sum breaks."""
    dtype = next(anatomy.root.parameters()).dtype
    if gap <= TOLERANCE.get(dtype, 1e-4):
        return
    stream = max(part.stream_gap for part in parts)
    where = (
        f"its sublayers do not add up to the residual stream (off by {stream:.1e} of it)"
        if stream > TOLERANCE.get(dtype, 1e-4)
        else "its final norm and unembedding do not give its logits"
    )
    raise InputError(f"the components of {name} miss its logits by {gap:.1e} of Σ|u|: {where}. It is not decomposed.")

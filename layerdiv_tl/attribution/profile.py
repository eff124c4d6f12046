"""Whole texts, whole vocabulary: bias and diversity of every component at every token (MATHS 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import choice, shown, whole_number
from ..components import Component, Unit
from ..ensemble.validation import LARGEST, factor, numbers
from ..errors import InputError
from ..model import tokenization as reading
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run_all_positions
from ..model.load import Model, load_model
from ..model.reconstruction import TOLERANCE, ReconstructionError, check_reconstruction, locate_mismatch
from .full_vocab import Reader, Table, answers, table_of
from .profile_results import CrossEntropyProfile, Profile, SquaredProfile
from .unembedding import NOTICED, check_finite
from .vocab_gram import vocabulary_of

if TYPE_CHECKING:
    import pandas as pd

Loss = Literal["squared", "cross_entropy"]
# Logits that top_tokens forms at most, one for every component and id.
LARGEST_LOOK = 100_000_000
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


def profile(
    model: Any,
    text_or_ids: Any,
    unit: Unit = "sublayer",
    *,
    loss: Loss = "squared",
    target: Float[np.ndarray, "position vocabulary"] | None = None,
    tau: float | None = None,
    window: int | None = None,
    stride: int | None = None,
    precision: Literal["float32", "float64"] = "float32",
    batch_tokens: int | None = None,
) -> Profile:
    """Bias, diversity and net of every component at every token, over the whole vocabulary.

    The logits of components are never formed: their sums over the vocabulary are products of small
    matrices. Position t is what the model says about token t + 1.

    model
        A `Model`, or anything `load_model` takes. A `Model` keeps what is worked out from its weights, so
        that the second profile of it starts at once.
    text_or_ids
        A text, a list of token ids, or several of either.
    unit
        "sublayer", "head" or "neuron", as in `contributions`.
    loss
        "squared": Theorem 1 against the next token (`SquaredProfile`); "cross_entropy": in nats, which
        goes through the vocabulary once for every component (`CrossEntropyProfile`; not for neurons).
    target
        For the squared error: other logits to compare with, `[position, vocabulary]`, of all texts one
        after another (a teacher's).
    tau
        For cross-entropy: what logits are multiplied by before the softmax; default |L|.
    window, stride
        A text longer than `window` tokens (default: the model's context) is read in windows that move on
        by `stride` tokens (default: half a window); each token is measured in the first window that holds it,
        with at least window − stride tokens before it in view, or all there are.
    precision
        Of products; sums over the vocabulary are float64 in either. The model itself runs as it is.
    batch_tokens
        The most padded tokens in one forward pass; None is what is fast on the model's device.

    Raises InputError for input that cannot be used, and for a model whose components do not sum to its
    logits.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> p = ld.profile(tiny, [1, 2, 3, 4])
    >>> p.bias.shape, bool(np.allclose((p.bias - p.diversity).mean(0)[:3], p.mse[:3]))
    ((5, 4), True)
    """
    job = _job(model, unit, loss, tau, window, stride, precision, batch_tokens)
    ids = _texts(job, text_or_ids)
    starts = np.cumsum([0] + [len(row) for row in ids])
    dense = _dense(job, target, int(starts[-1]))
    _check_room(job, int(starts[-1]))
    flat = np.concatenate([np.array(row, dtype=np.int64) for row in ids])
    sheet = _Sheet(len(flat), torch.float32 if unit == "neuron" and precision == "float32" else torch.float64)
    names: tuple[Component, ...] = ()
    windows = [w for number, row in enumerate(ids) for w in _windows(job, number, len(row))]
    gaps = _Gaps()
    for block in _blocks(job, ids, windows, dense, starts, gaps, sheet):
        if names and block.components != names:
            raise InputError(
                f"{job.model.name} ran its layers a different number of times for different texts, so they have no "
                "common components: give texts that run alike, or one at a time."
            )
        names = block.components
    return job.form(
        components=names,
        token_ids=flat,
        tokens=reading.token_texts(job.model, flat),
        documents=np.repeat(np.arange(len(ids)), [len(row) for row in ids]),
        contexts=np.concatenate([np.arange(w.first, w.stop) - w.start + 1 for w in windows]),
        identity_gap=gaps.relative,
        absolute_gap=gaps.absolute,
        look=_Look(job, ids),
        **sheet.columns(),
    )


@dataclass(frozen=True, eq=False)
class _Job:
    """What was asked for, checked."""

    model: Model
    unit: Unit
    loss: Loss
    tau: float | None
    window: int
    stride: int
    batch_tokens: int
    reader: Reader
    result: type[SquaredProfile] | type[CrossEntropyProfile]

    def form(self, **fields: Any) -> Profile:
        """A profile of these fields."""
        if self.loss == "cross_entropy":
            fields["tau"] = self.factor(len(fields["components"]))
        else:
            fields.setdefault("agreements", None)
        return self.result(
            vocabulary=self.reader.vocabulary.size,
            window=self.window,
            stride=self.stride,
            model=self.model.name,
            unit=self.unit,
            soft_cap=self.model.architecture.soft_cap,
            **fields,
        )

    def factor(self, members: int) -> float:
        """τ as used."""
        return float(members) if self.tau is None else float(self.tau)


def _job(
    model: Any, unit: Unit, loss: Loss, tau: Any, window: Any, stride: Any, precision: Any, batch_tokens: Any
) -> _Job:
    model = load_model(model)
    choice("unit", unit, get_args(Unit))
    choice("loss", loss, get_args(Loss))
    if loss == "cross_entropy" and unit == "neuron":
        raise InputError(
            "the cross-entropy of every neuron would need all their logits, which are too many: use loss='squared', "
            "or unit='sublayer' or 'head'."
        )
    if tau is not None and loss == "squared":
        raise InputError(f"tau={shown(tau)} belongs to loss='cross_entropy': the squared error has none.")
    choice("precision", precision, PRECISIONS)
    # No more than the model can read; and windows that lie apart would leave out tokens.
    window = (model.context or 2048) if window is None else whole_number("window", window, 1, model.context)
    stride = max(1, window // 2) if stride is None else whole_number("stride", stride, 1, window)
    reader = _reader(model, unit, precision)
    result = SquaredProfile if loss == "squared" else CrossEntropyProfile
    return _Job(
        model, unit, loss, factor(tau), window, stride, model.checked_batch_tokens(batch_tokens), reader, result
    )


def _reader(model: Model, unit: Unit, precision: str) -> Reader:
    """What was worked out from these very weights before, or now."""
    wide, roots = (
        PRECISIONS[precision],
        [model.architecture.root, getattr(model.architecture.root, "original_model", None)],
    )
    weights = tuple(
        (parameter.data_ptr(), 0 if parameter.is_inference() else parameter._version)
        for root in roots
        if root is not None
        for parameter in root.parameters()
    )
    if model.cache.get("weights") != weights:
        model.cache.clear()
        model.cache["weights"] = weights
    key = (unit, precision)
    if key not in model.cache:
        model.architecture.components(unit)  # refuses a unit that this model does not have
        with inference_mode_for(model.architecture):
            if precision not in model.cache:
                model.cache[precision] = vocabulary_of(model.architecture, wide)
            model.cache[key] = Reader(model.cache[precision], unit, wide)
    return model.cache[key]


def _texts(job: _Job, given: Any) -> list[tuple[int, ...]]:
    ids = reading.encode(job.model, given, any_length=True)
    _check_outputs(job, ids)
    return ids


def _check_outputs(job: _Job, ids: Sequence[Sequence[int]]) -> None:
    outputs = job.reader.vocabulary.size
    if any(token >= outputs for row in ids for token in row[1:]):
        raise InputError(
            f"{job.model.name} takes ids that it cannot answer with (it has {outputs} answers): as next tokens these "
            "have no logit."
        )


def _dense(job: _Job, target: Any, count: int) -> Float[np.ndarray, "position vocabulary"] | None:
    if target is None:
        return None
    if job.loss != "squared":
        raise InputError("a dense target is for loss='squared'; the cross-entropy is that of the next token.")
    t = numbers(target, "target", "[position, vocabulary]")
    shape = (count, job.reader.vocabulary.size)
    if t.shape != shape:
        raise InputError(f"target has the shape {t.shape}, but must be [position, vocabulary] = {shape}.")
    if not np.isfinite(t).all() or np.abs(t).max() > LARGEST:
        raise InputError("target holds numbers that are not finite, or so large that their squares overflow.")
    return t


def _check_room(job: _Job, count: int) -> None:
    """Refuse tables that memory cannot hold, before the model runs."""
    import psutil

    tables, width = 4, job.reader.width
    needed = count * width * tables * (4 if job.unit == "neuron" and job.reader.wide == torch.float32 else 8)
    if needed > psutil.virtual_memory().available:
        raise InputError(
            f"{count} tokens × {width} components need {needed / 2**30:.1f} GiB, more than is free here: take a "
            "shorter text, another unit, or corpus_profile, which keeps sums only."
        )


@dataclass(frozen=True)
class _Window:
    """Tokens start to stop of a text, of which those from `first` on are measured here."""

    document: int
    start: int
    stop: int
    first: int


def _windows(job: _Job, document: int, length: int) -> Iterator[_Window]:
    start, done = 0, 0
    while done < length:
        stop = min(start + job.window, length)
        yield _Window(document, start, stop, done)
        start, done = start + job.stride, stop


@dataclass(eq=False)
class _Gaps:
    """The largest gaps so far, in logits, and what they are relative to."""

    absolute: float = 0.0
    split: float = 0.0
    stream: float = 0.0
    unexplained: float = 0.0
    sums: float = 0.0
    size: float = field(default=float(np.finfo(float).tiny))

    @property
    def relative(self) -> float:
        return self.absolute / self.size

    def note(self, name: str, values: Tensor) -> None:
        """Keep the largest of a gap; NaN is the largest of all."""
        setattr(self, name, float(np.maximum(getattr(self, name), float(values.max()))))


class _Sheet:
    """Tables `[position, component]` and columns `[position]` on their way into a result.

    Blocks of positions write straight into them where they can: for neurons, copies cost as much as the
    arithmetic.
    """

    def __init__(self, count: int, store: torch.dtype) -> None:
        self.count, self.store = count, store
        self.tables: dict[str, Tensor] = {}
        self.waiting: list[tuple[str, Tensor, Tensor]] = []

    def room(self, name: str, at: Tensor, width: int | None, device: torch.device) -> Tensor:
        """Where to write a block's rows `at` of a table, or of a column."""
        if name not in self.tables:
            shape, kind = ((self.count,), torch.float64) if width is None else ((self.count, width), self.store)
            # By torch, not numpy: numpy asks for huge pages, whose first touch costs up to ten times as much.
            self.tables[name] = torch.empty(shape, dtype=kind)
        whole = self.tables[name]
        # Rows of several texts may stand in any order.
        if device.type == "cpu" and bool((at.diff() == 1).all()):
            return whole[int(at[0]) : int(at[-1]) + 1]
        own = torch.empty(len(at), *whole.shape[1:], dtype=whole.dtype, device=device)
        self.waiting.append((name, at, own))
        return own

    def settle(self) -> None:
        """Put what was written elsewhere in its place."""
        for name, at, own in self.waiting:
            self.tables[name][at] = own.cpu()
        self.waiting.clear()

    def columns(self) -> dict[str, np.ndarray]:
        """All of them as arrays."""
        return {name: table.numpy() for name, table in self.tables.items()}


@dataclass(frozen=True, eq=False)
class _Block:
    """Some positions: which texts they are of, and the sheet they are on."""

    components: tuple[Component, ...]
    documents: Int[np.ndarray, " position"]
    sheet: _Sheet


def _blocks(
    job: _Job,
    ids: Sequence[Sequence[int]],
    windows: Sequence[_Window],
    dense: np.ndarray | None,
    starts: np.ndarray,
    gaps: _Gaps,
    sheet: _Sheet | None,
) -> Iterator[_Block]:
    """All positions of some windows, some at a time; without a sheet every block has its own.

    Raises InputError where the parts miss the whole.
    """
    from tqdm.auto import tqdm

    architecture, reader = job.model.architecture, job.reader
    total = None if sheet is None else sheet.count
    progress = tqdm(total=total, desc=job.model.name, unit="token", delay=2, leave=False, disable=total is None)
    lengths = [w.stop - w.start for w in windows]
    with inference_mode_for(architecture), progress:
        for rows in batches(lengths, job.batch_tokens, architecture.length_switch):
            chosen = [windows[row] for row in rows]
            tokens, mask = pad([ids[w.document][w.start : w.stop] for w in chosen])
            done = run_all_positions(architecture, tokens, mask, job.unit)
            _check_answers(job, done, mask, gaps)
            documents = np.concatenate([np.full(w.stop - w.start, w.document) for w in chosen])
            positions = np.concatenate([np.arange(w.start, w.stop) for w in chosen])
            new = np.concatenate([np.arange(w.start, w.stop) >= w.first for w in chosen])
            wanted = np.flatnonzero(new)
            for start in range(0, len(wanted), reader.step):
                some = wanted[start : start + reader.step]
                following = np.array([_next(ids[d], p) for d, p in zip(documents[some], positions[some], strict=True)])
                targets = None if dense is None else dense[starts[documents[some]] + positions[some]]
                part = done.at_positions(_slice(some))
                if sheet is None:
                    on, at = _Sheet(len(some), torch.float64), torch.arange(len(some))
                else:
                    on, at = sheet, torch.as_tensor(starts[documents[some]] + positions[some])
                room = partial(on.room, at=at, device=part.final.device)
                components = _measure(job, part, following, targets, gaps, room)
                on.settle()
                yield _Block(components, documents[some], on)
                progress.update(len(some))
            _refuse(job, done, gaps, ids, chosen)
            del done


def _slice(rows: np.ndarray) -> slice | Tensor:
    """Neighboring rows as a slice, which copies nothing; rows are given in order."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else torch.as_tensor(rows)


def _next(row: Sequence[int], position: int) -> int:
    return row[position + 1] if position + 1 < len(row) else -1


def _measure(
    job: _Job,
    part: Activations,
    following: np.ndarray,
    dense: np.ndarray | None,
    gaps: _Gaps,
    room: Callable[..., Tensor],
) -> tuple[Component, ...]:
    """Fill the tables and columns of some positions; NaN where there is no next token. The components' names."""
    architecture, reader = job.model.architecture, job.reader
    vocabulary, device = reader.vocabulary, part.final.device
    said, logits = answers(architecture, part.final)
    partition = _log_sum_exp(logits)
    spoken_mean, spoken_power = _mean_and_power(said)
    if not (part.final.isfinite().all() and partition.isfinite().all()):
        written = torch.stack([part.embed, *(firing.output for firing in part.sublayer_outputs)], 1)
        written_by = zip(part.sublayer_outputs, part.repeats, strict=True)
        names = [
            Component("embed"),
            *(Component(f.sublayer.kind, f.sublayer.layer, repeat=repeat) for f, repeat in written_by),
        ]
        check_finite(names, written, part.final, logits)
    table = table_of(reader, part)
    members, constant = len(table.components), table.constant

    def put(name: str, values: Tensor) -> None:
        room(name, width=None).copy_(values)

    last = torch.as_tensor(following < 0, device=device)
    # At the end of a text the sum is checked at the model's own answer.
    asked = torch.as_tensor(following, device=device)
    asked[last] = logits[last].argmax(1)
    direction, added = vocabulary.rows(asked)
    streams = table.final / table.sigma[:, None]
    target, means = room("centered_targets", width=members), room("means", width=members)
    queries, out = [direction], [target]
    constants = [added]  # what the constant answers, query by query
    # The mean of all components is (W · final + constant) / |L|.
    cross = streams @ vocabulary.constant_product
    seen = streams @ vocabulary.gram
    power = (streams * seen).sum(1) + 2 * cross + vocabulary.constant_power
    middle = streams @ vocabulary.mean + vocabulary.constant_mean
    factor_of_logits = architecture.logit_multiplier
    gaps.note("sums", (power - spoken_power * factor_of_logits**2).abs() / power.clamp_min(1e-300))
    width_of_logits = (power / vocabulary.size).sqrt() + middle.abs()
    gaps.note("sums", (middle - spoken_mean * factor_of_logits).abs() / width_of_logits.clamp_min(1e-300))
    if job.loss == "squared":
        put("powers", power / members**2)
        put("ensemble_means", middle / members)
        queries.append((seen + vocabulary.constant_product) / members)
        constants.append((cross + vocabulary.constant_power) / members)
        out.append(room("crosses", width=members))
        if dense is not None:
            t = torch.as_tensor(dense, device=device)
            centered = t - t.mean(1, keepdim=True)
            direction_of_target, answer = _seen(reader, centered)
            queries.append(direction_of_target)
            constants.append(answer)
            out.append(room("agreements", width=members))
            put("target_powers", centered.square().sum(1))
            put("target_means", t.mean(1))
        else:
            nowhere = torch.zeros(len(asked), dtype=torch.float64, device=device).masked_fill_(last, torch.nan)
            put("target_powers", nowhere + (1 - 1 / vocabulary.size))
            put("target_means", nowhere + 1 / vocabulary.size)
        sizes = room("sizes", width=members)
        table.moments(means, sizes)
        if constant is not None:
            sizes[:, constant] = vocabulary.constant_power
    else:
        table.moments(means)
        tau = job.factor(members)
        # Of what the components sum to, not of what the model rounded, so that the identity is exact.
        wide = streams.to(reader.wide)
        logits_of = [(wide @ rows.T + shift).double() for _, rows, shift in vocabulary.chunks(reader.wide)]
        log_p = (torch.cat(logits_of, 1) * (tau / members)).log_softmax(1)
        p = log_p.exp()
        expected, answer = _seen(reader, p)
        queries.append(expected)
        constants.append(answer)
        out.append(room("expectations", width=members))
        put("entropies", -(p * log_p).sum(1))
        table.log_partitions(tau, room("log_partitions", width=members))
    table.inner(queries, out)
    if constant is not None:
        means[:, constant] = vocabulary.constant_mean
        for values, answer in zip(out, constants, strict=True):
            values[:, constant] = answer.to(values.dtype)
    spoken = said.gather(1, asked[:, None])[:, 0].double() * factor_of_logits
    _note(table, target, means, direction + vocabulary.mean, spoken, gaps)
    target[last] = torch.nan
    put("losses", torch.where(last, torch.nan, partition - logits.gather(1, asked[:, None])[:, 0].double()))
    return table.components


def _log_sum_exp(logits: Float[Tensor, "position v"]) -> Float[Tensor, " position"]:
    """In the precision of the logits, a few rows at a time; NaN or infinite where a logit is."""
    found = []
    for some in logits.split(16):  # which stay in the processor's cache
        largest = some.amax(1, keepdim=True)
        found.append((some - largest).exp_().sum(1).double().log() + largest[:, 0].double())
    return torch.cat(found)


def _mean_and_power(said: Float[Tensor, "position v"]) -> tuple[Tensor, Tensor]:
    """The mean of every row and Σ_v of its squared distance from that: what G must give as well; float64."""
    found = []
    for some in said.split(16):
        mean = some.mean(1)
        found.append(torch.stack([mean, (some - mean[:, None]).square_().sum(1)]).double())
    mean, power = torch.cat(found, 1)
    return mean, power


def _seen(reader: Reader, weights: Float[Tensor, "position v"]) -> tuple[Tensor, Tensor]:
    """(stream directions Σ_v weight · W_v, Σ_v weight · constant), float64; a product for every position.

    Rows and constants are less their means over the vocabulary.
    """
    directions = torch.zeros(len(weights), reader.vocabulary.mean.numel(), dtype=torch.float64, device=weights.device)
    constants = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    for ids, rows, constant in reader.vocabulary.chunks(reader.wide):
        some = weights[:, ids].to(reader.wide)
        directions += some @ rows
        constants += some @ constant
    return directions, constants


def _note(
    table: Table,
    target: Float[Tensor, "position component"],
    means: Float[Tensor, "position component"],
    direction: Float[Tensor, "position d"],
    spoken: Float[Tensor, " position"],
    gaps: _Gaps,
) -> None:
    """How far the parts are from the whole, and the whole from what was spoken, at one id of every position."""
    total, size = torch.zeros_like(spoken), torch.zeros_like(spoken)
    splits: list[tuple[Tensor, Tensor]] = []
    for piece in table.pieces:
        some = slice(piece.start, piece.stop) if piece.z is None else list(piece.columns)
        # Sublayer by sublayer: thousands of neurons lose digits in one sum of float32.
        u = target[:, some] + means[:, some]
        here, apart = u.sum(1).double(), torch.linalg.vector_norm(u, 1, dim=1).double()
        total, size = total + here, size + apart
        if piece.firing is not None:
            wrote = (direction * piece.firing.output).sum(1) / table.sigma
            rest = 0.0 if piece.rest is None else (target[:, piece.rest] + means[:, piece.rest]).double()
            splits.append(((here + rest - wrote).abs(), apart))
    if table.constant is not None:
        added = (target[:, table.constant] + means[:, table.constant]).double()
        total, size = total + added, size + added.abs()
    for off, apart in splits:
        gaps.note("split", off / apart.clamp_min(max(NOTICED * float(size.max()), 1e-30)))
    gaps.note("size", size)
    gaps.note("absolute", (total - spoken).abs())
    gaps.note("stream", table.missing)


def _check_answers(job: _Job, done: Activations, mask: Tensor, gaps: _Gaps) -> None:
    """The model's own answers at the last tokens against those that its norm and unembedding give."""
    ends = (mask.sum(1).cumsum(0) - 1).to(done.final.device)
    _, logits = answers(job.model.architecture, done.final[ends])
    gaps.note("unexplained", (logits - done.logits).abs())


def _refuse(
    job: _Job, done: Activations, gaps: _Gaps, ids: Sequence[Sequence[int]], windows: Sequence[_Window]
) -> None:
    dtypes = (done.dtype, done.answer_dtype)
    closure = ReconstructionError(gaps.split, gaps.stream, gaps.relative, gaps.unexplained / gaps.size, *dtypes)
    window = windows[0]
    check_reconstruction(
        job.model.name,
        job.unit,
        closure,
        lambda: locate_mismatch(job.model.architecture, ids[window.document][window.start : window.stop]),
    )
    _check_sums(job, done, gaps)


def _check_sums(job: _Job, done: Activations, gaps: _Gaps) -> None:
    """The vocabulary's sums must be those of the model's own logits, at every position."""
    tolerance = max(TOLERANCE.get(done.dtype, 1e-4), TOLERANCE.get(done.answer_dtype, 1e-4), 2e-4)
    if not gaps.sums <= tolerance:
        raise InputError(
            f"{job.model.name}: what was worked out from its unembedding is {gaps.sums:.1e} off its own logits, where "
            f"rounding explains {tolerance:.0e}: its weights were changed in a way that leaves no trace, or products "
            "run in a reduced precision (TF32): load it again, or set torch.set_float32_matmul_precision('highest')."
        )


@dataclass(frozen=True, eq=False)
class _Look:
    """Runs the model up to a token again and reads components out over the whole vocabulary."""

    job: _Job
    ids: list[tuple[int, ...]]

    def __call__(
        self, components: Sequence[Component], columns: Sequence[int], document: int, position: int, k: int
    ) -> pd.DataFrame:
        """The k largest and k smallest logits of some components at a position of a text."""
        import pandas as pd

        job, row = self.job, self.ids[document]
        architecture, reader = job.model.architecture, job.reader
        if len(components) * reader.vocabulary.size > LARGEST_LOOK:
            raise InputError(
                f"{len(components)} components × {reader.vocabulary.size} ids are too many logits to look at: name "
                "fewer components."
            )
        window = next(w for w in _windows(job, 0, len(row)) if w.first <= position < w.stop)
        # A model that reads long texts in another way must see the text as long as it was.
        stop = position + 1 if architecture.length_switch is None else window.stop
        at = position - window.start
        with inference_mode_for(architecture):
            tokens, mask = pad([row[window.start : stop]])
            done = run_all_positions(architecture, tokens, mask, job.unit)
            table = table_of(reader, done.at_positions(slice(at, at + 1)))
            z = table.vectors(columns)[0].to(done.final.device)
            pieces = list(reader.vocabulary.chunks(reader.wide))
            logits = torch.cat([z.to(rows) @ rows.T for _, rows, _ in pieces], 1).double()
            means = z @ reader.vocabulary.mean
            whole = [column == table.constant for column in columns]
            if table.constant in columns:
                logits[whole] = torch.cat([constant for _, _, constant in pieces]).double()
                means[whole] = reader.vocabulary.constant_mean
            logits, means = logits.cpu(), means.cpu()
        rows = []
        for sign, effect in ((1, "promotes"), (-1, "suppresses")):
            found = (sign * logits).topk(k, dim=1).indices
            for line, component in enumerate(components):
                for rank, token in enumerate(found[line].tolist(), start=1):
                    centered = float(logits[line, token])
                    rows.append((component.label, effect, rank, token, centered + float(means[line]), centered))
        names = ["component", "effect", "rank", "token_id", "contribution", "contribution_centered"]
        frame = pd.DataFrame(rows, columns=names)
        frame.insert(3, "token", reading.token_texts(job.model, frame["token_id"].to_numpy()))
        frame.attrs["units"] = {"contribution": "logits", "contribution_centered": "logits"}
        return frame

"""What is measured once per model, on a few random tokens: where its writers write, and that none was missed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .frozen import HALF
from .names import with_names
from .passes import Pass, Replay
from .patching import frozen, hooks, modules_of, noise, one_at_a_time, silent, tensor
from .path import Path
from .writers import Form, Names, Writer, count_inputs, find_writers, unwrapped

# Tokens of a probe, and where its rows are read: sinusoids at one position would look like a constant.
_SHAPE, _READS = (2, 7), (torch.tensor((0, 1)), torch.tensor((6, 4)))
# The share of the largest logit that rounding may leave, by precision.
_ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 5e-2}


def find_path(module: Any, unembed: Any, writers: list[Writer] | None = None, names: Any = None) -> Path:
    """Find how a model goes from its writes to its logits.

    Raises InputError for a model whose logits are not explained by the writers that are found: it names the matrices
    that were missed.
    """
    known = with_names(names)
    path = Path(module, unembed, find_writers(module, known) if writers is None else writers)
    if len(path.writers) < 2:
        raise InputError(f"no sublayer was found in {path.name}, so it cannot be decomposed: {HOW}.")
    generator = torch.Generator().manual_seed(0)
    weight = getattr(module.get_input_embeddings(), "weight", None)
    path.vocabulary = int(module.config.get_text_config().vocab_size if weight is None else weight.shape[0])
    ids = torch.randint(min(3, path.vocabulary - 1), path.vocabulary, _SHAPE, generator=generator)
    with one_at_a_time(module), silent(module), torch.inference_mode(False), torch.enable_grad():
        try:
            _measure(path, ids, known)
        except (RuntimeError, IndexError) as error:  # a pass of another form may fail in any way
            raise InputError(f"{path.name} cannot be decomposed: its pass cannot be replayed ({error}).") from error
    return path


def _measure(path: Path, ids: Tensor, names: Names) -> None:
    """Measure everything that a path holds. Raises InputError for a model that cannot be decomposed."""
    _find_places(path, ids)
    seen = path.record(ids, None, *_READS)
    path.by_token = _is_replayed(path, seen)
    if not path.by_token:
        seen = path.record(ids, None, *_READS)
    if _find_ends(path, seen):
        seen = path.record(ids, None, *_READS)
    path.dtype = (seen.finals or seen.writes)[-1].dtype
    assert seen.unembedded is not None
    assert seen.logits is not None
    with_matrices = _find_partial(path, seen)
    replay = path.replay(seen)
    path.width = replay.final.shape[-1]
    for two, one in zip(replay.constants, path.replay(seen.take(slice(0, 1))).constants, strict=True):
        longer = [axis for axis, (m, n) in enumerate(zip(two.shape, one.shape, strict=True)) if m != n]
        path.constant_axes.append(longer[0] if longer else 0)
    path.adds = _is_sum(path, replay)
    path.calls = list(seen.calls)
    path.probe_ids, path.probe_reads = ids, _READS
    path.outputs = seen.unembedded.shape[-1]
    is_half = path.dtype in HALF
    path.factor, path.soft_cap = _transform(path, seen.unembedded.double(), seen.logits.double(), is_half)
    if missed := missed_matrices(path, with_matrices, names):
        how = HOW
        if re.search(r"\.\d+\.\w+\.\d+\.", missed[0]):  # LongCat-Flash
            how = "its layers have several sublayers of one kind in a list, and such layers cannot be read here"
        raise InputError(
            f"{path.name} cannot be decomposed: {', '.join(missed[:3])}{' …' * (len(missed) > 3)} write to its "
            f"residual stream, or stand on the way to its logits, and are not among the writers found: {how}."
        )


HOW = "name its sublayers, load_model(..., names={'attention': …, 'mlp': …, 'projection': …})"


def check_finite(path: Path, seen: Pass) -> None:
    """Raise InputError for numbers of a pass that are not finite, naming the component that wrote the first of them."""
    for component, write in zip(seen.components(), seen.writes, strict=True):
        if not bool(write.isfinite().all()):
            raise path.not_finite(str(component))


def _find_places(path: Path, ids: Tensor) -> None:
    """Find where each writer's output is what its projection gives; writers that do not run are left out."""
    shown: dict[nn.Module, tuple[Any, Tensor]] = {}
    order: list[nn.Module] = []

    def look(module: nn.Module, args: Any, output: Any) -> None:
        shown[module] = output, tensor(output).clone()
        order.append(module)

    modules = dict.fromkeys(module for w in path.writers for module in (w.owner, w.place, *_sources(w)))
    with torch.inference_mode(), hooks() as add:
        for module in modules:
            add(module.register_forward_hook(look))
        path.run(ids)
    path.writers = [w for w in path.writers if w.owner in shown]
    for writer in path.writers:
        if not writer.maps:
            _find_place(writer, shown)
        elif writer.place is not writer.owner:
            writer.behind = writer.owner, _form_of(shown[writer.owner][0], ids)
        writer.form = _form_of(shown[writer.place][0], ids)
    path.writers.sort(key=lambda w: order.index(w.place))


def _sources(writer: Writer) -> tuple[nn.Module, ...]:
    """What may show a projection's input; TransformerLens may compute with a matrix without calling it."""
    projection: Any = writer.projection
    return unwrapped(projection), projection, getattr(projection, "hook_in", projection)


def _find_place(writer: Writer, shown: Mapping[nn.Module, tuple[Any, Tensor]]) -> None:
    """Find where a writer's output is what its projection gives, and what shows the projection's input."""
    writer.place, writer.maps = writer.owner, (writer.projection,)
    writer.source = next((module for module in _sources(writer) if module in shown), writer.owner)
    if writer.source is writer.owner:  # it is not called
        writer.projection, writer.maps, writer.heads = writer.owner, (writer.owner,), 0
    if writer.projection not in shown or writer.projection is writer.owner:
        return
    whole, end = shown[writer.owner][1], shown[writer.projection][1]
    if whole.numel() != end.numel() or not torch.equal(whole.flatten(), end.flatten()):
        writer.place = writer.projection
    width = count_inputs(writer.projection)
    if writer.heads and width is not None and width % writer.heads:
        writer.heads = 0


def _form_of(output: Any, ids: Tensor) -> Form:
    """How a module returned an output for the tokens of a probe."""
    write = tensor(output)
    others = None if isinstance(output, Tensor) else (type(output), len(output) - 1)
    return Form(others, write.dim() == 2 and len(write) == ids.numel(), write.shape[-1])


def _is_replayed(path: Path, seen: Pass) -> bool:
    """True if a replay gives a pass's logits."""
    assert seen.unembedded is not None
    try:
        normed = path.replay(seen).normed.detach()
    except RuntimeError:  # a path that cannot run on one token
        return False
    answer = path.unembed_rows(None)
    logits = normed.float() @ answer[0].float().T + (0 if answer[1] is None else answer[1].float())
    size = seen.unembedded.float().abs().max().clamp_min(1e-30)
    off = (logits - seen.unembedded.float()).abs().max() / size
    return bool(off <= _ROUNDING.get(path.dtype, 1e-4))


def _find_ends(path: Path, seen: Pass) -> bool:
    """Find the final norm, and the norms between sublayers and the stream; True if these or half precision matter.

    Raises InputError where the embedding does not reach the logits: a later "write" is then the whole stream.
    """
    returned: dict[int, Writer] = {}
    reads: dict[nn.Module, list[tuple[Any, Any]]] = defaultdict(list)
    kept: list[Tensor] = []  # so that no other tensor takes their id
    called: list[nn.Module] = []
    places = {w.place: w for w in path.writers}

    def look(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        called.append(module)
        if module in places:
            kept.append(tensor(output))
            returned[id(kept[-1])] = places[module]
        else:
            reads[module].append((args[0] if len(args) == 1 and not kwargs else None, output))

    def observe(add: Callable[[Any], None]) -> None:
        for module in modules_of(path.module):
            add(module.register_forward_hook(look, with_kwargs=True))

    replay = path.replay(seen, observe=observe)
    total = (replay.normed * noise(replay.normed)).sum()
    if not (total.requires_grad and _gradient(total, replay.writes[0]) is not None):
        raise InputError(
            f"{path.name} cannot be decomposed: what its embedding writes does not reach its logits by linear "
            f"steps (a network before the unembedding, or a sublayer that returns the whole stream): {HOW}."
        )
    in_blocks = {m for w in path.writers if w.block is not None for m in w.block.modules()}
    norms = [m for m in called if "Norm" in type(unwrapped(m)).__name__]
    path.norm = norms[-1] if norms and norms[-1] not in in_blocks else None
    holders = _holders(path.module, {*places, path.unembed})
    found = {m: calls for m, calls in reads.items() if m not in holders}
    extended = path.by_token and _extend_writers(seen, total, returned, found)
    return extended or seen.writes[-1].dtype in HALF


def _is_sum(path: Path, replay: Replay) -> bool:
    """True if the final norm reads the sum of all writes, and the unembedding the norm's output."""
    if path.norm is None or not path.by_token:
        return False
    v = noise(replay.final)
    if any(g is None or not torch.equal(g, v) for g in (_gradient(replay.final, leaf, v) for leaf in replay.writes)):
        return False
    total = torch.stack([leaf.detach() for leaf in (*replay.writes, *replay.rounding)]).sum(0)
    is_all = torch.allclose(total, replay.final.detach(), rtol=1e-9 if path.wide == torch.float64 else 1e-5)
    return is_all and torch.equal(replay.after_norm[:, 0], replay.normed)


def _holders(module: nn.Module, targets: set[nn.Module]) -> set[nn.Module]:
    """The modules that are, or hold, one of some others."""
    found: set[nn.Module] = set()

    def holds(m: nn.Module) -> bool:
        inner = [holds(child) for child in m._modules.values() if child is not None]
        if m in targets or any(inner):
            found.add(m)
        return m in found

    holds(module)
    return found


def _gradient(y: Tensor, x: Tensor, seed: Tensor | None = None) -> Tensor | None:
    return torch.autograd.grad(y, x, seed, retain_graph=True, allow_unused=True)[0]


def _extend_writers(
    seen: Pass, total: Tensor, returned: dict[int, Writer], reads: dict[nn.Module, list[tuple[Any, Any]]]
) -> bool:
    """Extend each writer by the module, as a norm, that alone reads its output: what the stream gains is the write.

    True if some are.
    """
    calls = Counter(writer for writer, _ in seen.calls)
    last: dict[Writer, tuple[nn.Module, Tensor]] = {}  # a module that wraps another is called last
    for module, found in reads.items():
        owners = {returned.get(id(x)) for x, _ in found}
        writer = owners.pop() if len(owners) == 1 else None
        if writer is None or len(found) != calls[writer]:
            continue
        if not all(isinstance(out, Tensor) and out is not x and out.numel() == x.numel() for x, out in found):
            continue
        x, output = found[0]
        at_x, at_output = _gradient(total, x), _gradient(total, output)
        through = None if at_output is None else _gradient(output, x, at_output)
        # It is the only way of the write to the logits, and reads one token at a time.
        if at_x is None or through is None:
            continue
        if torch.allclose(through, at_x, rtol=1e-6, atol=1e-9 * float(at_x.abs().max())):
            last[writer] = module, output
    for writer, (module, output) in last.items():
        if writer.block is not None:
            writer.behind = writer.place, writer.form
        writer.place, writer.maps = module, (*writer.maps, module)
        writer.form = Form(None, output.dim() == 2, output.shape[-1])
    return bool(last)


def _find_partial(path: Path, seen: Pass) -> Replay:
    """Find writes after which nothing reads the stream: what runs until the next write does not depend on them.

    Returns the replay, whose graph includes matrices.
    """
    since: list[list[Tensor]] = [[]]  # what modules received after each write, on the path
    places, owners = {w.place for w in path.writers}, {w.owner for w in path.writers}
    written: list[Any] = [None]

    def received(module: nn.Module, args: Any, kwargs: Any) -> None:
        x = next(iter((*args, *kwargs.values())), None)
        is_write = x is written[-1] and module not in owners  # a dropout reads the write, no stream
        if isinstance(x, Tensor) and x.requires_grad and not is_write:
            since[-1].append(x)

    def wrote(module: nn.Module, args: Any, output: Any) -> None:
        since.append([])
        written.append(tensor(output))

    def observe(add: Callable[[Any], None]) -> None:
        for module in modules_of(path.module):
            add(module.register_forward_pre_hook(received, with_kwargs=True))
        for module in places:
            add(module.register_forward_hook(wrote))

    replay = path.replay(seen, matrices=True, observe=observe)
    for (writer, _), leaf, inputs in zip(seen.calls, replay.writes, since[1:], strict=True):
        writer.is_partial = all(_gradient(x.sum(), leaf) is None for x in inputs)
    return replay


def _transform(path: Path, output: Tensor, logits: Tensor, is_half: bool) -> tuple[float, float | None]:
    """Measure the factor and the soft cap between the unembedding's output and the logits.

    Raises InputError where these numbers do not explain the model's logits.
    """
    module: Any = path.module
    config = module.config.get_text_config()
    settings = {name: x for name, x in vars(config).items() if re.search("cap|logit|lm_head", name)}
    numbers = {abs(float(x)) for x in settings.values() if isinstance(x, int | float) and x}
    present = output.abs() > 0
    ratio = float((logits[present] / output[present]).median()) if bool(present.any()) else 1.0
    rtol = 3e-2 if is_half else 1e-4
    for cap in (None, *numbers):
        for factor in (1.0, *numbers, *(1 / x for x in numbers), *([ratio] if cap is None else [])):
            found = transformed(output, factor, cap)
            if torch.allclose(found, logits, rtol=rtol, atol=rtol * 1e-2 * float(logits.abs().max())):
                return factor, cap
    raise InputError(
        f"{path.name} cannot be decomposed: what stands between its unembedding and its logits is not a factor or "
        "a soft cap."
    )


def transformed(output: Tensor, factor: float, cap: float | None) -> Tensor:
    """Compute the logits from the unembedding's output."""
    return output * factor if cap is None else cap * torch.tanh(output * factor / cap)


def missed_matrices(path: Path, replay: Replay, names: Names) -> list[str]:
    """Matrices that a gradient from the logits passes, besides the unembedding: each is of a writer that was missed.

    `replay` is one with matrices. This is what a closed sum cannot show: a missed sublayer is linear, too, once its
    nonlinear results are frozen.
    """
    own = set(path.unembed.parameters())
    matrices = {
        n: p for n, p in path.module.named_parameters() if p.dim() > 1 and p.is_floating_point() and p not in own
    }
    with torch.inference_mode(False), torch.enable_grad(), frozen(path.module, matrices=True):
        total = (replay.normed * noise(replay.normed)).sum()
        grads = torch.autograd.grad(total, list(matrices.values()), retain_graph=True, allow_unused=True)
    found = [name for name, g in zip(matrices, grads, strict=True) if g is not None]
    return [name for name in found if not set(names["multipliers"]) & set(name.split("."))]

"""Tasks: prompts with one gold option each, by name or from a user's own rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Int

from .._checks import file_path, flag, listed, shown, text, whole_number
from ..errors import InputError
from ..model.prompts import check_ids, refuse_unordered
from ..results import Result
from . import option_tokens
from .lm_eval import PREFIX as LM_EVAL
from .lm_eval import lm_eval_rows
from .rows import Rows, read_rows
from .specs import PAPER_ROWS, custom_spec, find_spec
from .templates import TaskSpec, demonstrations, render

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 1_000_000  # a synthetic task is unlimited


@dataclass(frozen=True, eq=False)
class Task(Result):
    """Prompts, their options (shared or per prompt), and the gold option of each.

    `task`, `Task.from_frame` and `Task.from_lm_eval` make one. Lists of prompts and options need none:
    `ld.contributions(model, prompts, options)`.

    Attributes:
        prompts: The rendered texts, ready for a model.
        options: The K answers exactly as a model must write them, leading space included; or K for every prompt.
        labels: `[example]`, the index of the gold option.
        texts: The rows' own text without the template, for baselines and tables.
        name, template, source, license: The task's name, the template of its prompts, and the rows' source and license.
        dropped, shots, truncated: Number of rows dropped because they have another number of options than most, of
            solved examples before every prompt, and of prompts that `fit` has shortened.
        passages: `[example, 2]`, start and end of each prompt's longest field, which `fit` may shorten; empty if
            unknown.
        option_ids, scored: After `resolve`: the token ids that score the options (none where they are scored as
            sequences of tokens), and a note on the scoring where options have several tokens or the tokenizer would
            join them with a space that ends a prompt.
    """

    name: str
    prompts: tuple[str, ...]
    options: tuple[str, ...] | tuple[tuple[str, ...], ...]
    labels: Int[np.ndarray, " example"]
    texts: tuple[str, ...]
    template: str
    source: str
    license: str
    dropped: int = 0
    shots: int = 0
    passages: Int[np.ndarray, "example 2"] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    truncated: int = 0
    option_ids: tuple[int, ...] = ()
    scored: str = ""

    def __post_init__(self) -> None:
        refuse_unordered("prompts", self.prompts)
        refuse_unordered("options", self.options)
        if self.shared_options is None and len(self.options) != len(self.prompts):
            raise InputError(
                f"options has {len(self.options)} lists for {len(self.prompts)} prompts: give one for each."
            )
        if len({len(options) for options in self.row_options}) > 1:
            raise InputError("options must be equally many for every prompt.")
        labels = np.asarray(self.labels)
        whole = labels.shape == (len(self.prompts),) and labels.dtype.kind in "iu"
        if not whole or not ((labels >= 0) & (labels < self.option_count)).all():
            one_each = (
                f"the number of its option, from 0 to {self.option_count - 1}, for each of {len(self.prompts)} prompts"
            )
            raise InputError(f"labels={self.labels!r:.60} must hold {one_each}.")

    @property
    def shared_options(self) -> tuple[str, ...] | None:
        """The options where all prompts share them, else None."""
        return cast(tuple[str, ...], self.options) if all(isinstance(x, str) for x in self.options) else None

    @property
    def row_options(self) -> tuple[tuple[str, ...], ...]:
        """The options of every prompt."""
        return cast(Any, self.options if (shared := self.shared_options) is None else (shared,) * len(self.prompts))

    @property
    def option_count(self) -> int:
        """The number of options of a prompt, K."""
        return len(self.options if self.shared_options is not None else self.options[0])

    @property
    def answers(self) -> list[str]:
        """The gold option of every prompt."""
        return [options[label] for options, label in zip(self.row_options, self.labels, strict=True)]

    @property
    def prompt_hash(self) -> str:
        """SHA-256 of the rendered prompts: equal for tasks that give a model the same texts.

        >>> two, again, three = (task("sample/topic", limit=limit) for limit in (2, 2, 3))
        >>> len(two.prompt_hash), two.prompt_hash == again.prompt_hash, two.prompt_hash == three.prompt_hash
        (64, True, False)
        """
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        template: str,
        options: Sequence[str] | str,
        label: str = "label",
        name: str = "frame",
        license: str = "unknown",
        limit: int | None = None,
        shots: int = 0,
        seed: int = 0,
        train: Any = None,
    ) -> Task:
        """Make a task from your own rows: a frame, a format string over its columns, ordered options, the gold column.

        The gold column holds options, or their indices from 0; the template cannot read it. Options are plain words, to
        which the template adds its space (see `templates.Template`); if one of them begins with a space they are used
        unchanged. So are the options of each row, in the column that `options` names; rows with another number of
        options than most are dropped, and they take no shots. `limit`, `shots`, `seed`, `train` are those of `task`.

        Raises InputError as `task` does.

        >>> import pandas as pd
        >>> rows = pd.DataFrame({"word": ["hot", "big"], "opposite": ["cold", "small"]})
        >>> t = Task.from_frame(rows, template="The opposite of {word} is", options=["cold", "small"], label="opposite")
        >>> t.prompts[0], t.options, t.labels.tolist()
        ('The opposite of hot is', (' cold', ' small'), [0, 1])
        >>> sums = pd.DataFrame({"sum": ["2 + 2 =", "3 + 4 ="], "answers": [[" 4", " 5"], [" 6", " 7"]], "label": 0})
        >>> Task.from_frame(sums, template="{sum}{answer}", options="answers").answers
        [' 4', ' 6']
        """
        for argument, value in (("template", template), ("label", label), ("name", name), ("license", license)):
            text(argument, value)
        spec = custom_spec(name, {"default": template}, options, label, license)
        return _build(spec, frame, limit, None, shots, seed, train)

    @classmethod
    def from_lm_eval(cls, name: str, data: Any = None, *, limit: int | None = None) -> Task:
        """Make a task from a multiple-choice task of EleutherAI's `lm-eval` (`pip install lm-eval datasets`).

        Its own templates render prompts and options, without demonstrations; every prompt has options of its own.

        Args:
            name: A task of lm-eval, as in "arc_easy", or "lm_eval/arc_easy", the name that `task` takes.
            data: The rows in the columns of its data set, given as for `task`. Without it, lm-eval loads them from
                Hugging Face.
            limit: Use the first `limit` rows, by default 2000.

        Raises InputError where lm-eval is not installed, for an unknown name or a group of tasks, for a task that is
        not one choice among options after one prompt, and for rows that its templates cannot read.

        >>> Task.from_lm_eval("piqa", data="piqa.jsonl")  # doctest: +SKIP
        Task(lm_eval/piqa: 3 rows, 2 options each; piqa.jsonl)
        """
        full_name = LM_EVAL + text("name", name).removeprefix(LM_EVAL)
        limit = PAPER_ROWS if limit is None else whole_number("limit", limit, 1, MAX_ROWS)
        return _with_own_options(full_name, lm_eval_rows(full_name, data, limit), limit)

    def take(self, rows: Sequence[int]) -> Task:
        """Select some of the task's rows by index, e.g. to choose on some and measure on others.

        Raises InputError for no rows, and for row indices that do not exist.

        >>> t = task("sample/topic", limit=8)
        >>> t.take(range(4)).prompts == t.prompts[:4], len(t.take([7, 0]))
        (True, 2)
        """
        numbers = listed("rows", rows, f"row numbers from 0 to {len(self) - 1}, as in range(8)")
        chosen = [whole_number("rows", row, 0, len(self) - 1) for row in numbers]
        if not chosen:
            raise InputError("rows is empty: give at least one row number.")
        prompts, texts = (tuple(x[row] for row in chosen) for x in (self.prompts, self.texts))
        options = self.options if self.shared_options is not None else tuple(self.row_options[row] for row in chosen)
        passages = self.passages[chosen] if len(self.passages) else self.passages
        some: dict[str, Any] = {"prompts": prompts, "texts": texts, "options": options, "passages": passages}
        return replace(self, labels=self.labels[chosen], **some)

    def resolve(self, tokenizer: Any, multi_token: bool = False) -> Task:
        """Return the task with the token ids that score its options for one tokenizer, in `option_ids`.

        Options of several tokens, and those of each prompt, are scored as sequences: `contributions` takes their texts,
        and `option_ids` stays empty. If the tokenizer splits white space off all options and leaves single tokens, it
        moves to the prompts. With `multi_token`, shared options are scored by the first token in which they differ;
        their common beginning moves to the prompts, too. `scored` describes the result. `tokenizer` is a Hugging Face
        tokenizer, or a model with one.

        Raises InputError for options without tokens or with equal ones, or that `multi_token` cannot tell apart by one.
        """
        flag("multi_token", multi_token)
        own = _tokenizer(tokenizer)
        shared = self.shared_options
        if shared is None and multi_token:
            raise InputError(f"multi_token is for options that prompts share, but {self.name}'s differ: leave it out.")
        if shared is None or not (multi_token or option_tokens.are_single_tokens(own, shared)):
            option_tokens.check_sequences(own, self.row_options)
            return replace(self, option_ids=(), scored=option_tokens.AS_SEQUENCES)
        start, ids, scored = option_tokens.option_ids(own, shared, multi_token)
        if (architecture := getattr(tokenizer, "architecture", None)) is not None:  # a model
            check_ids(ids, architecture.outputs, "options")
        joined = option_tokens.note_on_blanks(own, self.prompts, shared)
        return replace(
            self,
            prompts=tuple(prompt + start for prompt in self.prompts),
            options=tuple(option[len(start) :] for option in shared),
            option_ids=ids,
            scored="; ".join(filter(None, [scored, joined])),
        )

    def as_chat(self, tokenizer: Any, system: str | None = None, **settings: Any) -> Task:
        """Convert the task for a chat model: every prompt is a user's turn, answered in the assistant's turn.

        Options follow the way the tokenizer's chat template places an answer: without a space after a line break (most
        models), with one after `[/INST]` (Llama 2, Mistral); an empty thought before an answer stays. `settings` go to
        the template, e.g. `enable_thinking=False`. Demonstrations stay in the user's turn.

        Raises InputError for a tokenizer without a chat template, or one that rejects a system turn.
        """
        if system is not None:
            text("system", system, empty=True)
        turns, option_prefix = option_tokens.render_chat(_tokenizer(tokenizer), self.prompts, system, settings)
        # Templates may strip a message, so its place is searched for.
        starts = [turn.rfind(prompt.strip()) for turn, prompt in zip(turns, self.prompts, strict=True)]
        stripped = [len(prompt) - len(prompt.lstrip()) for prompt in self.prompts]
        passages = self.passages + (np.array(starts) - stripped)[:, None] if len(self.passages) else self.passages
        return replace(
            self,
            prompts=tuple(turns),
            options=option_tokens.each(self.options, lambda option: option_prefix + option.strip()),
            passages=passages if min(starts) >= 0 else self.passages[:0],
            option_ids=(),
            scored="",
        )

    def fit(self, tokenizer: Any, context: int) -> Task:
        """Return the task with no prompt longer than `context` tokens; `truncated` counts the shortened ones.

        Where options are scored as sequences, the longest one's tokens but the last must fit, too.

        A long prompt loses characters from the left of its longest field, so that question and demonstrations stay
        whole. Raises InputError where that is not enough.
        """
        tokenizer, context = _tokenizer(tokenizer), whole_number("context", context, 1)
        prompts, passages = list(self.prompts), self.passages.copy()
        if self.scored == option_tokens.AS_SEQUENCES:
            context -= option_tokens.longest(tokenizer, self.row_options) - 1
        long = [row for row, prompt in enumerate(prompts) if option_tokens.count_tokens(tokenizer, prompt) > context]
        if long and not len(passages):
            raise InputError(f"{len(long)} prompts are longer than {context} tokens: shorten them, or leave them out.")
        for row in long:
            span = (int(passages[row, 0]), int(passages[row, 1]))
            prompts[row], cut = option_tokens.shorten_passage(tokenizer, prompts[row], span, context)
            passages[row, 1] -= cut
        return replace(self, prompts=tuple(prompts), passages=passages, truncated=self.truncated + len(long))

    def frame(self) -> pd.DataFrame:
        """One row per example: text, prompt, gold label and option."""
        import pandas as pd

        frame = pd.DataFrame({"text": self.texts, "prompt": self.prompts, "label": self.labels})
        frame["option"] = self.answers
        names = ("source", "license", "template", "shots", "prompt_hash", "dropped", "truncated", "scored")
        frame.attrs |= {"task": self.name} | {name: getattr(self, name) for name in names}
        return frame

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        counts = np.bincount(self.labels, minlength=self.option_count)
        gold = ", ".join(f"{o!r} {c}" for o, c in zip(self.shared_options or (), counts, strict=False))
        return f"Task({self.name}: {len(self)} rows, {gold or f'{self.option_count} options each'}; {self.source})"


def _tokenizer(x: Any) -> Any:
    """Return a model's tokenizer, or the tokenizer given."""
    tokenizer = getattr(x, "tokenizer", x)
    if not callable(tokenizer):
        raise InputError(f"{shown(x)} is not a tokenizer: give one, or a model that load_model(...) gave one.")
    return tokenizer


def task(
    name: str | os.PathLike[str],
    data: Any = None,
    *,
    limit: int | None = None,
    template: str | None = None,
    shots: int = 0,
    seed: int = 0,
    train: Any = None,
) -> Task:
    """Load a task by name, rendered into prompts.

    Args:
        name: The paper's `ag_news arc boolq mnli qqp rte sst2 wic`, and `arc_challenge`; `sample/…`, small balanced
            tasks written for this package; `synthetic/…`, generated, with parameters as in
            `synthetic/k_hop:hops=3,seed=1` (see `tasks.synthetic`); or a JSON file such as `{"template": "{word}
            means", "options": ["a", "b"], "label": "gold", "data": "rows.csv"}`, with `name`, `license`, `train`,
            `limit`, or `templates` by name instead of `template`, if wanted; its paths are relative. With options of
            each prompt: a `.jsonl` file of rows `{"prompt": "2 + 2 =", "options": [" 4", " five"], "label": 0}`, and
            `lm_eval/…`, a multiple-choice task of EleutherAI's `lm-eval` (see `Task.from_lm_eval`); neither takes a
            template or shots.
        data: The rows: a folder with `<name>.jsonl` (or .json, .csv, .parquet) in the columns of the Hugging Face data
            set, such a file itself, a pandas frame, or a `datasets.Dataset`. Without it the paper's tasks come from
            Hugging Face through the optional library `datasets`. Tasks that bring their rows ignore a folder.
        limit: Use the first `limit` rows; by default 2000 for the paper's tasks, as in the paper, 256 for synthetic
            ones and all for others. Rows of sample and synthetic tasks alternate between the classes.
        template: The name of another of the task's templates, or a format string over its fields. `{answer}` marks the
            place of the answer; see `templates.Template`.
        shots, seed, train: Put this many solved examples before every prompt, balanced over classes, drawn with the
            seed from training rows: `train` (like `data`), or `<name>_train` in the folder `data`, or Hugging Face's
            train split, or a synthetic task's own training rows. Rows of the task itself are not shown.

    Raises InputError for an unknown name, a limit below 1, a template that does not fit, and rows that are missing,
    malformed or labeled with none of the options.

    >>> import layerdiv_tl as ld
    >>> t = ld.task("sample/sentiment", limit=4)
    >>> t.options, t.labels.tolist()
    ((' negative', ' positive'), [0, 1, 0, 1])
    >>> print(ld.task("synthetic/modular", limit=1, shots=2).prompts[0])
    (64 + 30) mod 7=3
    <BLANKLINE>
    (50 + 22) mod 7=2
    <BLANKLINE>
    (85 + 62) mod 7=
    """
    if isinstance(name, str | os.PathLike) and (str(name).endswith(".jsonl") or str(name).startswith(LM_EVAL)):
        if template is not None or whole_number("shots", shots, 0, MAX_ROWS) or train is not None:
            raise InputError(f"{name} brings its prompts: leave template=, shots= and train= out.")
        if not str(name).endswith(".jsonl"):
            return Task.from_lm_eval(str(name), data, limit=limit)
        if data is not None and not (isinstance(data, str | os.PathLike) and os.path.isdir(data)):
            raise InputError(f"{shown(str(name))} holds its rows itself: leave data= out.")
        return _with_own_options(Path(name).stem, read_rows(name, ()), limit)
    spec, own_train = find_spec(name)
    return _build(spec, data, limit, template, shots, seed, own_train if train is None else train)


def _with_own_options(name: str, rows: Rows, limit: int | None) -> Task:
    """Make a task of rows with the columns `prompt`, `options` and `label`."""
    spec = custom_spec(name, {"default": "{prompt}{answer}"}, "options", "label", "unknown")
    whole = _build(replace(spec, load_rows=lambda split, count: rows), None, limit, None, 0, 0, None)
    return replace(whole, passages=whole.passages[:0])  # `fit` must not cut a prompt whose parts are unknown


def _build(
    spec: TaskSpec, data: Any, limit: int | None, template: str | None, shots: int, seed: int, train: Any
) -> Task:
    if train is not None and not hasattr(train, "iloc") and not hasattr(train, "to_list"):
        file_path("train", train)  # checked even if no shots are drawn from it
    shots, seed = whole_number("shots", shots, 0, MAX_ROWS), whole_number("seed", seed, 0)
    if shots and isinstance(spec.options, str):
        raise InputError(
            f"the rows of {spec.name} have options of their own, so shots= finds no classes: leave it out."
        )
    limit = spec.limit if limit is None else whole_number("limit", limit, 1, MAX_ROWS)
    in_folder = isinstance(data, str | os.PathLike) and os.path.isdir(file_path("data", data))
    if in_folder and not spec.file_names:
        data, in_folder = None, False
    rows = spec.rows("test", limit) if data is None else read_rows(data, spec.file_names, spec.split)
    fields, source = render(spec, rows, template, limit), rows.source
    if shots:
        names = tuple(f"{name}_train" for name in spec.file_names)
        if train is not None:
            pool = read_rows(train, (*names, *spec.file_names), "train")
        elif in_folder:
            pool = read_rows(data, names, "train")
        elif data is None:
            pool = spec.rows("train")
        else:
            raise spec.without_rows("train")
        solved = demonstrations(render(spec, pool, template), shots, seed, fields["prompts"])
        fields["prompts"] = tuple(solved + prompt for prompt in fields["prompts"])
        fields["passages"] += len(solved)
        source += f"; {shots} demonstrations of {pool.source}, seed {seed}"
    return Task(name=spec.name, source=source, license=spec.license, shots=shots, **fields)

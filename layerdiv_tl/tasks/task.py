"""Tasks: prompts with one gold option each, by name or from a user's own rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Int

from .._checks import whole_number
from ..errors import InputError
from ..model.prompts import check_ids, items
from . import option_tokens
from .lm_eval import PREFIX as LM_EVAL
from .lm_eval import lm_eval_rows
from .rows import Rows, read_rows
from .specs import PAPER_ROWS, find_spec
from .templates import TaskSpec, render

if TYPE_CHECKING:
    import pandas as pd

# The columns of answers that `from_frame` expects, and those that it makes of several columns of answers.
_DEFAULT = ("right", "wrong")
_ANSWERS, _LABEL = "list of answers", "number of the right answer"


@dataclass(frozen=True, eq=False)
class Task:
    """Prompts, their options (shared or per prompt), and the gold option of each.

    `task` and `Task.from_frame` make one. Lists of prompts and options need none:
    `ld.contributions(model, prompts, options)`.

    Attributes:
        prompts: The rendered texts, ready for a model.
        options: The K answers exactly as a model must write them, leading space included; or K for every prompt.
        labels: `[example]`, the index of the gold option.
        name, template, source, license: The task's name, the template of its prompts, and the rows' source and license.
        option_names: The columns of a frame that the options come from; empty where they come from elsewhere.
        dropped: Number of rows dropped because they have another number of options than most.
        option_ids, scored: After `resolve`: the token ids that score the options (none where they are scored as
            sequences of tokens), and a note where they are sequences.
    """

    name: str
    prompts: tuple[str, ...]
    options: tuple[str, ...] | tuple[tuple[str, ...], ...]
    labels: Int[np.ndarray, " example"]
    template: str
    source: str
    license: str
    option_names: tuple[str, ...] = ()
    dropped: int = 0
    option_ids: tuple[int, ...] = ()
    scored: str = ""

    def __post_init__(self) -> None:
        items("prompts", self.prompts, "a list of texts")
        items("options", self.options, "a list of answers")
        sizes = {len(options) for options in self.row_options}
        if len(self.row_options) != len(self.prompts) or len(sizes) > 1:
            raise InputError("options must be answers for all prompts, or equally many for each prompt.")
        labels = np.asarray(self.labels)
        is_complete = labels.shape == (len(self.prompts),) and labels.dtype.kind in "iu"
        if not is_complete or not ((labels >= 0) & (labels < len(self.row_options[0]))).all():
            raise InputError(f"labels={self.labels!r:.60} must hold the number of an option for each prompt.")

    @property
    def shared_options(self) -> tuple[str, ...] | None:
        """The options where all prompts share them, else None."""
        return cast(tuple[str, ...], self.options) if all(isinstance(x, str) for x in self.options) else None

    @property
    def row_options(self) -> tuple[tuple[str, ...], ...]:
        """The options of every prompt."""
        return cast(Any, self.options if (shared := self.shared_options) is None else (shared,) * len(self.prompts))

    @property
    def answers(self) -> list[str]:
        """The gold option of every prompt."""
        return [options[label] for options, label in zip(self.row_options, self.labels, strict=True)]

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        prompt: str = "prompt",
        options: Sequence[str] | str = _DEFAULT,
        *,
        label: str | None = None,
        template: str | None = None,
        name: str = "frame",
        license: str = "unknown",
        limit: int | None = None,
    ) -> Task:
        """Make a task from your own rows.

        Args:
            frame: A row per prompt.
            prompt: The column of the prompts, which are used unchanged.
            options: The columns of the answers (`option_names` keeps their names); or one column that holds a list for
                each row; or the answers that all rows share, as texts. All are used unchanged, but texts under a
                `template` gain its space (see `templates.split_answer`) unless one of them begins with a space.
            label: The column of the right answer: its text, or its index from 0. None: the first column of answers is
                right; otherwise "label".
            template: A format string over the columns in place of `prompt`. It cannot read the label or the answers.
            name, license: Of the task.
            limit: Use the first `limit` rows.

        Rows with another number of options than most are dropped. Raises InputError for options that are columns in
        part, and as `task` does.

        >>> import pandas as pd
        >>> rows = pd.DataFrame({"prompt": ["2 + 2 =", "3 + 4 ="], "right": [" 4", " 7"], "wrong": [" 5", " 6"]})
        >>> t = Task.from_frame(rows)
        >>> t.options, t.option_names, t.answers
        (((' 4', ' 5'), (' 7', ' 6')), ('right', 'wrong'), [' 4', ' 7'])
        >>> rows = pd.DataFrame({"word": ["hot", "big"], "opposite": ["cold", "small"]})
        >>> t = Task.from_frame(rows, template="The opposite of {word} is", options=["cold", "small"], label="opposite")
        >>> t.prompts[0], t.options, t.labels.tolist()
        ('The opposite of hot is', (' cold', ' small'), [0, 1])
        """
        names: tuple[str, ...] = ()
        if not isinstance(options, str):
            options = tuple(items("options", options, "a list of columns or of answers"))
            known = {option in frame.columns for option in options}
            if len(known) > 1 or (known == {False} and options == _DEFAULT):
                raise InputError(f"not all of options={options} are columns of the frame: name columns, or give texts.")
            if known == {True}:
                names = tuple(map(str, options))
                answers: dict[str, Any] = {_ANSWERS: frame[list(options)].to_numpy().tolist()}
                frame = frame.assign(**answers, **{_LABEL: 0 if label is None else frame[label]})
                options, label = _ANSWERS, _LABEL
            elif len({option.strip() for option in options} - {""}) < max(2, len(options)):
                raise InputError(f"options={options!r:.60} must be at least two different words: ['no', 'yes'].")
        spec = TaskSpec(
            name=name,
            templates={"own": f"{{{prompt}}}{{answer}}" if template is None else template},
            options=options,
            license=license,
            label_column="label" if label is None else label,
            hidden=names,
        )
        return replace(_render(spec, read_rows(frame), limit), option_names=names)

    def select(self, rows: Any) -> Task:
        """Select rows by a slice, a range, or an array of indices or of truth values: to choose on some and measure on
        others, or to leave out prompts that are longer than a model's context.

        >>> t = task("sample/topic", limit=8)
        >>> t.select(range(4)).prompts == t.prompts[:4], len(t.select([7, 0]))
        (True, 2)
        """
        chosen = np.arange(len(self))[list(rows) if isinstance(rows, range) else rows]
        if not chosen.size:
            raise InputError("there are no such rows: give at least one.")
        return replace(
            self,
            prompts=tuple(self.prompts[row] for row in chosen),
            options=self.options if self.shared_options else tuple(self.row_options[row] for row in chosen),
            labels=self.labels[chosen],
        )

    def resolve(self, tokenizer: Any) -> Task:
        """Return the task with the token ids that score its options for one tokenizer, in `option_ids`.

        Options of several tokens, and those of each prompt, are scored as sequences: `contributions` takes their texts,
        `option_ids` stays empty, and `scored` says so. If the tokenizer splits white space off all options and leaves
        single tokens, it moves to the prompts. `tokenizer` is a Hugging Face tokenizer, or a model with one.

        Raises InputError for options without tokens or with equal ones, or that the tokenizer does not know.
        """
        own, shared = _tokenizer(tokenizer), self.shared_options
        start, ids = ("", ()) if shared is None else option_tokens.single_tokens(own, shared)
        if not ids:
            option_tokens.check_sequences(own, self.row_options)
            return replace(self, option_ids=(), scored=option_tokens.AS_SEQUENCES)
        if (path := getattr(tokenizer, "path", None)) is not None:  # a model
            check_ids(ids, path.outputs, "options")
        prompts = tuple(prompt + start for prompt in self.prompts)
        options = tuple(option.removeprefix(start) for option in shared or ())
        return replace(self, prompts=prompts, options=options, option_ids=ids, scored="")

    def as_chat(self, tokenizer: Any, system: str | None = None, **settings: Any) -> Task:
        """Convert the task for a chat model: every prompt is a user's turn, answered in the assistant's turn.

        Options follow the way the tokenizer's chat template places an answer: without a space after a line break (most
        models), with one after `[/INST]` (Llama 2, Mistral); an empty thought before an answer stays. `settings` go to
        the template, e.g. `enable_thinking=False`.

        Raises InputError for a tokenizer without a chat template, or one that rejects a system turn.
        """
        turns, option_prefix = option_tokens.render_chat(_tokenizer(tokenizer), self.prompts, system, settings)
        options = tuple(tuple(option_prefix + x.strip() for x in texts) for texts in self.row_options)
        return replace(
            self,
            prompts=tuple(turns),
            options=options[0] if self.shared_options else options,
            option_ids=(),
            scored="",
        )

    def frame(self) -> pd.DataFrame:
        """One row per example: prompt, gold label and option."""
        import pandas as pd

        frame = pd.DataFrame({"prompt": self.prompts, "label": self.labels, "option": self.answers})
        names = ("source", "license", "template", "dropped", "scored")
        frame.attrs |= {"task": self.name} | {name: getattr(self, name) for name in names}
        return frame

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        size = len(self.row_options[0])
        counts = np.bincount(self.labels, minlength=size)
        gold = ", ".join(f"{o!r} {c}" for o, c in zip(self.shared_options or (), counts, strict=False))
        return f"Task({self.name}: {len(self)} rows, {gold or f'{size} options each'}; {self.source})"


def _tokenizer(x: Any) -> Any:
    """Return a model's tokenizer, or the tokenizer given."""
    tokenizer = getattr(x, "tokenizer", x)
    if tokenizer is None:
        raise InputError("the model has no tokenizer, which options need: give load_model(…, tokenizer=…) one.")
    return tokenizer


def task(name: str, data: Any = None, *, limit: int | None = None, template: str | None = None) -> Task:
    """Load a task by name, rendered into prompts.

    Args:
        name: The paper's `ag_news arc boolq mnli qqp rte sst2 wic`, and `arc_challenge`; `sample/…`, small balanced
            tasks written for this package; `synthetic/…`, generated, with parameters as in
            `synthetic/k_hop:hops=3,seed=1` (see `tasks.synthetic`); a `.jsonl` file of rows `{"prompt": "2 + 2 =",
            "options": [" 4", " five"], "label": 0}`; or `lm_eval/…`, a multiple-choice task of EleutherAI's `lm-eval`
            (`pip install lm-eval datasets`), whose own templates render prompts and options, without demonstrations.
        data: The rows: a folder with `<name>.jsonl` (or .json, .csv, .parquet) in the columns of the Hugging Face data
            set, such a file itself, a pandas frame, or a `datasets.Dataset`. Without it the paper's tasks and those of
            lm-eval come from Hugging Face through the optional library `datasets`. Tasks that bring their rows ignore a
            folder.
        limit: Use the first `limit` rows; by default 2000 for the paper's tasks, as in the paper, and lm-eval's, 256
            for synthetic ones and all for others. Rows of sample and synthetic tasks alternate between the classes.
        template: The name of another of the task's templates, or a format string over its fields. `{answer}` marks the
            place of the answer; see `templates.split_answer`.

    Raises InputError for an unknown name, a limit below 1, a template that does not fit, and rows that are missing,
    malformed or labeled with none of the options.

    >>> import layerdiv_tl as ld
    >>> t = ld.task("sample/sentiment", limit=4)
    >>> t.options, t.labels.tolist()
    ((' negative', ' positive'), [0, 1, 0, 1])
    """
    limit = None if limit is None else whole_number("limit", limit, 1)
    if str(name).startswith(LM_EVAL) or str(name).endswith(".jsonl"):
        if template is not None:
            raise InputError(f"{name} brings its prompts: leave template= out.")
        if str(name).startswith(LM_EVAL):
            limit = limit or PAPER_ROWS
            rows = lm_eval_rows(name, data, limit)
        else:
            name, rows = Path(name).stem, read_rows(name)
        return _render(TaskSpec(name, {"own": "{prompt}{answer}"}, "options"), rows, limit)
    spec = find_spec(name)
    limit = limit or spec.limit
    if not spec.file_names and isinstance(data, str | os.PathLike) and os.path.isdir(data):
        data = None
    rows = spec.load_rows(limit) if data is None else read_rows(data, spec.file_names)
    return _render(spec, rows, limit, template)


def _render(spec: TaskSpec, rows: Rows, limit: int | None, template: str | None = None) -> Task:
    return Task(name=spec.name, source=rows.source, license=spec.license, **render(spec, rows, template, limit))

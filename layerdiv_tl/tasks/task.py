"""Tasks: prompts with one gold option each, by name or from a user's own rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Int

from .._checks import shown, whole_number
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

# The columns of answers that `from_frame` expects.
_DEFAULT = ("right", "wrong")


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
        dropped, truncated: Number of rows dropped because they have another number of options than most, and of prompts
            that `fit` has shortened.
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
    template: str
    source: str
    license: str
    option_names: tuple[str, ...] = ()
    dropped: int = 0
    passages: Int[np.ndarray, "example 2"] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    truncated: int = 0
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
        if not is_complete or not ((labels >= 0) & (labels < self.option_count)).all():
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
    def option_count(self) -> int:
        """The number of options of a prompt, K."""
        return len(self.options if self.shared_options is not None else self.options[0])

    @property
    def answers(self) -> list[str]:
        """The gold option of every prompt."""
        return [options[label] for options, label in zip(self.row_options, self.labels, strict=True)]

    @property
    def prompt_hash(self) -> str:
        """SHA-256 of the rendered prompts: equal for tasks that give a model the same texts."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()

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
                `template` gain its space (see `templates.Template`) unless one of them begins with a space.
            label: The column of the right answer: in all rows the name of its column, else its text or its index from
                0. None: the first column of answers is right; otherwise "label".
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
        data = read_rows(frame, ())
        if template is None and prompt not in frame.columns:
            raise InputError(f"the frame has no column {prompt!r}: name the column of prompts in prompt=.")
        names: tuple[str, ...] = ()
        if not isinstance(options, str):
            options = tuple(items("options", options, "a list of columns or of answers"))
            known = [option in frame.columns for option in options]
            names = options if all(known) else ()
            if any(known) and not names:
                raise InputError(f"options={options} are columns of the frame in part: name columns, or give texts.")
            if not names and options == _DEFAULT:
                raise InputError(f"the frame has no columns {_DEFAULT}: name its columns of answers in options=.")
            if not all(isinstance(option, str) for option in options):
                raise InputError(f"options={options}: columns of answers need names that are texts, not numbers.")
        if names:
            by_name = label is not None and all(row[label] in names for row in data.rows)
            data = Rows([_with_answers(row, names, label, by_name) for row in data.rows], data.source)
            options, label = _ANSWERS, _LABEL
        elif not isinstance(options, str):
            _check_words(options)
        spec = TaskSpec(
            name=name,
            description="own rows",
            templates={"own": f"{{{prompt}}}{{answer}}" if template is None else template},
            options=options,
            license=license,
            label_column="label" if label is None else label,
            hidden=names,
        )
        made = _render(spec, data, limit)
        # `fit` must not cut a prompt whose parts are unknown.
        return replace(made, option_names=names, passages=made.passages[:0] if template is None else made.passages)

    def select(self, rows: Any) -> Task:
        """Select some of the task's rows, e.g. to choose on some and measure on others: a slice, a range, or an array
        of indices or of truth values.

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
            passages=self.passages[chosen] if len(self.passages) else self.passages,
        )

    def resolve(self, tokenizer: Any, multi_token: bool = False) -> Task:
        """Return the task with the token ids that score its options for one tokenizer, in `option_ids`.

        Options of several tokens, and those of each prompt, are scored as sequences: `contributions` takes their texts,
        and `option_ids` stays empty. If the tokenizer splits white space off all options and leaves single tokens, it
        moves to the prompts. With `multi_token`, shared options are scored by the first token in which they differ;
        their common beginning moves to the prompts, too. `scored` describes the result. `tokenizer` is a Hugging Face
        tokenizer, or a model with one.

        Raises InputError for options without tokens or with equal ones, or that `multi_token` cannot tell apart by one.
        """
        own = _tokenizer(tokenizer)
        shared = self.shared_options
        if shared is None and multi_token:
            raise InputError(f"multi_token is for options that prompts share, but {self.name}'s differ: leave it out.")
        if shared is None or not (multi_token or option_tokens.are_single_tokens(own, shared)):
            option_tokens.check_sequences(own, self.row_options)
            return replace(self, option_ids=(), scored=option_tokens.AS_SEQUENCES)
        start, ids, scored = option_tokens.option_ids(own, shared, multi_token)
        if (path := getattr(tokenizer, "path", None)) is not None:  # a model
            check_ids(ids, path.outputs, "options")
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
        the template, e.g. `enable_thinking=False`.

        Raises InputError for a tokenizer without a chat template, or one that rejects a system turn.
        """
        turns, option_prefix = option_tokens.render_chat(_tokenizer(tokenizer), self.prompts, system, settings)
        # Templates may strip a message, so its place is searched for.
        starts = [turn.rfind(prompt.strip()) for turn, prompt in zip(turns, self.prompts, strict=True)]
        stripped = [len(prompt) - len(prompt.lstrip()) for prompt in self.prompts]
        passages = self.passages + (np.array(starts) - stripped)[:, None] if len(self.passages) else self.passages
        options = tuple(tuple(option_prefix + x.strip() for x in texts) for texts in self.row_options)
        return replace(
            self,
            prompts=tuple(turns),
            options=options[0] if self.shared_options else options,
            passages=passages if min(starts) >= 0 else self.passages[:0],
            option_ids=(),
            scored="",
        )

    def fit(self, tokenizer: Any, context: int) -> Task:
        """Return the task with no prompt longer than `context` tokens; `truncated` counts the shortened ones.

        A long prompt loses characters from the left of its longest field, so that the question stays whole. Where
        options are scored as sequences, the longest one's tokens but the last must fit, too. Raises InputError where
        that is not enough.
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
        """One row per example: prompt, gold label and option."""
        import pandas as pd

        frame = pd.DataFrame({"prompt": self.prompts, "label": self.labels, "option": self.answers})
        names = ("source", "license", "template", "prompt_hash", "dropped", "truncated", "scored")
        frame.attrs |= {"task": self.name} | {name: getattr(self, name) for name in names}
        return frame

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        counts = np.bincount(self.labels, minlength=self.option_count)
        gold = ", ".join(f"{o!r} {c}" for o, c in zip(self.shared_options or (), counts, strict=False))
        return f"Task({self.name}: {len(self)} rows, {gold or f'{self.option_count} options each'}; {self.source})"


# The columns that `from_frame` makes of several columns of answers.
_ANSWERS, _LABEL = "list of answers", "number of the right answer"


def _with_answers(row: Mapping[str, Any], names: tuple[str, ...], label: str | None, by_name: bool) -> dict[str, Any]:
    """Add the list of a row's answers, and the right one's number or text."""
    number = 0 if label is None else names.index(row[label]) if by_name else row[label]
    return {**row, _ANSWERS: [row[name] for name in names], _LABEL: number}


def _check_words(options: tuple[str, ...]) -> None:
    words = [option.strip() for option in options]
    if len(words) < 2 or not all(words) or len(set(words)) < len(words):
        raise InputError(f"options={options!r:.60} must be at least two different words: ['no', 'yes'].")


def _tokenizer(x: Any) -> Any:
    """Return a model's tokenizer, or the tokenizer given."""
    tokenizer = getattr(x, "tokenizer", x)
    if not callable(tokenizer):
        raise InputError(f"{shown(x)} is not a tokenizer: give one, or a model that load_model(...) gave one.")
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
            place of the answer; see `templates.Template`.

    Raises InputError for an unknown name, a limit below 1, a template that does not fit, and rows that are missing,
    malformed or labeled with none of the options.

    >>> import layerdiv_tl as ld
    >>> t = ld.task("sample/sentiment", limit=4)
    >>> t.options, t.labels.tolist()
    ((' negative', ' positive'), [0, 1, 0, 1])
    """
    if isinstance(name, str | os.PathLike) and (str(name).endswith(".jsonl") or str(name).startswith(LM_EVAL)):
        if template is not None:
            raise InputError(f"{name} brings its prompts: leave template= out.")
        if str(name).endswith(".jsonl"):
            name, rows = Path(name).stem, read_rows(name, ())
        else:
            limit = PAPER_ROWS if limit is None else whole_number("limit", limit, 1)
            rows = lm_eval_rows(str(name), data, limit)
        spec = TaskSpec(name, "own rows", {"own": "{prompt}{answer}"}, "options", "unknown")
        return replace(_render(spec, rows, limit), passages=np.empty((0, 2), dtype=np.int64))
    spec = find_spec(name)
    if not spec.file_names and isinstance(data, str | os.PathLike) and os.path.isdir(data):
        data = None
    limit = spec.limit if limit is None else whole_number("limit", limit, 1)
    rows = spec.load_rows(limit) if data is None else read_rows(data, spec.file_names, spec.split)
    return _render(spec, rows, limit, template)


def _render(spec: TaskSpec, rows: Rows, limit: int | None, template: str | None = None) -> Task:
    limit = None if limit is None else whole_number("limit", limit, 1)
    return Task(name=spec.name, source=rows.source, license=spec.license, **render(spec, rows, template, limit))

"""Every architecture that TransformerLens lists, and every causal language model of Transformers: exact, or why not.

    python -m tests.oracles.architectures --table

writes the reference's first table: identity gaps of the families of `families.py`, at every unit. Without `--table` it
writes the second: what is not in the first, each with the reason that the package gives for a tiny random model, or why
there is none to try. Exact ones missing from the first are printed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from tests.oracles.families import (
    _FAMILIES,
    _HYBRIDS,
    _OTHERS,
    _PATHS,
    _UNLISTED,
    BY_STRUCTURE,
    FAMILIES,
    config_of,
    reinitialize,
)

REFERENCE = Path(__file__).parents[2] / "layerdiv_tl/reference.md"
# Three families stand in a row.
UNITS = ("sublayer", "head", "neuron", "expert")
FIRST = f"| family | {' · '.join(UNITS)} " * 3 + "|\n" + "| --- | --- " * 3 + "|\n"
HEADER = "| architectures | not decomposed, since |\n| --- | --- |\n"
# Of these TransformerLens has another name than Transformers, or several.
ALIASES = {"Gemma1ForCausalLM": "GemmaForCausalLM", "MPTForCausalLM": "MptForCausalLM"}
# Read by tests of their own: looped models, toys, and MobileLLM's Llama.
ELSEWHERE = {"OuroForCausalLM", "TransformerLensNative"}
OTHER_TASKS = {
    "SEQ_TO_SEQ_CAUSAL_LM": "they have an encoder, of text or sound",
    "SPEECH_SEQ_2_SEQ": "they have an encoder, of text or sound",
    "CTC": "they are no language models of text",
    "AUDIO_CLASSIFICATION": "they are no language models of text",
    "IMAGE_CLASSIFICATION": "they are no language models of text",
    "MASKED_LM": "they look ahead",
    "IMAGE_TEXT_TO_TEXT": "not tried: multimodal, and the tests have no tiny model of it",
}
# Shorter forms of the package's reasons.
SHORT = {
    "are not among the writers found": "matrices of no known sublayer write to its stream or stand before its logits",
    "reaches its logits by linear steps": "a network of its own stands before its unembedding",
    "no sublayer was found": "no sublayer is found by its name",
    "miss its logits by": "its components do not sum to its logits",
}
NO_CLASS = "Transformers has no such class: the code comes with the checkpoint"


def causal() -> dict[str, str]:
    """{class: model type} of the causal language models of Transformers."""
    pairs = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    return {name if isinstance(name, str) else name[0]: kind for kind, name in reversed(pairs)}


def listed() -> list[str]:
    """The architectures that TransformerLens lists."""
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

    return list(SUPPORTED_ARCHITECTURES)


def exact() -> set[str]:
    """Classes in the first table, and those of multimodal models with a test, in small letters."""
    from tests.model.test_multimodal import WRAPPERS

    mapping = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    types = [kind for kind, _ in (_FAMILIES | _HYBRIDS | _UNLISTED | _OTHERS | _PATHS).values()]
    names = [mapping[kind] for kind in types]
    names += [modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind] for kind in WRAPPERS]
    found = {(name if isinstance(name, str) else name[0]) for name in names}
    return {name.casefold() for name in found | ELSEWHERE | {a for a, b in ALIASES.items() if b in found}}


def missing() -> list[str]:
    """What the first table lacks."""
    known = exact()
    return sorted({name for name in [*listed(), *causal()] if name.casefold() not in known}, key=str.casefold)


def reason(name: str) -> str | None:
    """Why an architecture is not decomposed; None for one that is."""
    if not hasattr(transformers, name):
        return NO_CLASS
    kind = causal().get(name)
    for task, why in OTHER_TASKS.items():
        names = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values()
        if name in {x if isinstance(x, str) else x[0] for x in names} and kind is None:
            return why
    if kind is None:
        return (
            "they are no language models of text" if name.endswith("Model") else "not tried: no causal language model"
        )
    return answer(kind)


def answer(kind: str) -> str | None:
    """What the package says of a tiny random model of a type."""
    import torch

    import layerdiv_tl as ld

    fields = CONFIG_MAPPING[kind].__dataclass_fields__
    options = {name: value for name, value in (("is_decoder", True), ("is_encoder_decoder", False)) if name in fields}
    try:
        config = config_of(kind, options)
        if config.get_text_config() is not config:
            return OTHER_TASKS["IMAGE_TEXT_TO_TEXT"]
        with torch.device("meta"):
            size = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
        if size > 1e7:
            return "not tried: the tests have no tiny configuration of it"
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        reinitialize(model, 0, 0.5)
    except Exception:
        return "not tried: the tests have no tiny configuration of it"
    try:
        with torch.no_grad():
            model(torch.tensor([[5, 1, 4, 1, 5]]))
    except Exception as error:
        return f"not tried: its code fails on a tiny configuration ({type(error).__name__})"
    try:
        c = ld.contributions(model, [[5, 1, 4, 1, 5], [3]], [7, 30])
    except ld.InputError as error:
        text = str(error)
        for pattern, why in SHORT.items():
            if re.search(pattern, text):
                return why
        text = text.replace(f"{type(model).__name__} cannot be decomposed: ", "")
        return text.replace("this model cannot be decomposed: ", "").strip().rstrip(".")
    except Exception as error:
        return f"the package fails on it ({type(error).__name__})"
    if not c["embed"].any():
        return "a block's output, and not what it adds, is taken for a write: do not use its numbers"
    return None


def table() -> str:
    """The rows of the second table, one for each reason, in Markdown."""
    reasons: dict[str, list[str]] = {}
    for name in missing():
        if (why := reason(name)) is None:
            print(f"exact, but not in the first table: {name}")
            continue
        reasons.setdefault(why, []).append(name)
    rows = sorted(reasons.items(), key=lambda row: (row[0].startswith("not tried"), -len(row[1])))
    return HEADER + "".join(f"| {', '.join(names)} | {why} |\n" for why, names in rows)


def gaps() -> str:
    """The first table: the identity gap at every unit, or a dash where a model has no rows of its own."""
    import layerdiv_tl as ld
    from tests.model.test_families import NATIVE, OPTIONS, PROMPTS, native

    makers = FAMILIES | BY_STRUCTURE | {name: lambda name=name: native(name) for name in NATIVE}
    cells = []
    for name, make in makers.items():
        model, of_units = ld.load_model(make()), []
        for unit in UNITS:
            try:
                of_units.append(f"{ld.contributions(model, PROMPTS, OPTIONS, unit=unit).identity_gap:.0e}")
            except ld.InputError:
                of_units.append("–")
        print(name, *of_units, flush=True)
        cells.append(f"| {name} | {' · '.join(of_units)} ")
    cells += ["| | "] * (-len(cells) % 3)
    return FIRST + "".join("".join(cells[start : start + 3]) + "|\n" for start in range(0, len(cells), 3))


def replace_table(header: str, new: str) -> None:
    """Write a table, with its header, in place of the reference's."""
    text = REFERENCE.read_text(encoding="utf-8")
    before, _, rest = text.partition(header)
    after = rest.partition("\n\n")[2]
    REFERENCE.write_text(f"{before}{new}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    if "--table" in sys.argv:
        replace_table(FIRST, gaps())
    else:
        replace_table(HEADER, table())

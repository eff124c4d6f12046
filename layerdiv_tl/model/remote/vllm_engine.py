"""TransformerLens' RemoteBridge over vLLM: the worker that holds the captures projects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...components import Unit
from ...errors import InputError
from ..architecture import Architecture
from .projection import project
from .skeleton import make_skeleton, sample_rows

HEADS = ("lm_head", "model.embed_tokens")  # the second where embeddings are tied


class VLLMEngine:
    """A `RemoteBridge` whose driver is TransformerLens' `VLLMDriver`, on one rank."""

    units: tuple[Unit, ...] = ("sublayer",)  # vLLM's kernels fuse what heads and neurons are read from

    def __init__(self, bridge: Any) -> None:
        from transformers import AutoModelForCausalLM

        driver = bridge._driver
        if not hasattr(getattr(driver, "_llm", None), "collective_rpc"):
            raise InputError(
                f"this RemoteBridge runs on a {type(driver).__name__}, which cannot project where its model runs: boot "
                "it with RemoteBridge.boot_vllm."
            )
        from transformer_lens.model_bridge.sources.vllm.internals import extract_hf_config

        # A bridge that nobody holds closes its engine.
        self.bridge, self.driver, self.llm, self.received = bridge, driver, driver._llm, 0
        config = extract_hf_config(self.llm)
        dtype = bridge.cfg.dtype
        self.skeleton = make_skeleton(AutoModelForCausalLM, config, dtype, self._vectors)
        self.name = "vLLM"

    def _rpc(self, work: Any, *arguments: Any) -> Any:
        answers = self.llm.collective_rpc(work, args=arguments)
        if len(answers) != 1:
            raise InputError(
                f"this engine runs on {len(answers)} ranks, each of which holds a part of the unembedding: boot it "
                "with tensor_parallel_size=1 and pipeline_parallel_size=1."
            )
        return answers[0]

    def _vectors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The final norm and the unembedding's bias; vLLM fuses most of what else is small."""
        from transformer_lens.model_bridge.sources.vllm.worker_extension import decode_tensor

        wanted = [name for name in names if name.startswith(("model.norm.", "lm_head."))]
        found = {name: self._rpc("tl_get_param", name) for name in wanted}
        rows = self._rpc(read_rows, HEADS, 16)
        return {name: decode_tensor(x) for name, x in {**found, "": rows}.items() if x is not None}

    def run(
        self,
        architecture: Architecture,
        plan: dict[str, Any],
        unit: Unit,
        rows: Sequence[Sequence[int]],
        of: Tensor,
        at: Tensor,
        targets: Tensor,
    ) -> dict[str, Tensor]:
        """Some rows of tokens, one request each, read at `at` of rows `of`: what `project` returns."""
        from transformer_lens.model_bridge.sources.vllm.worker_extension import decode_tensor

        if architecture.pos_embed is not None:
            raise InputError("a model with a position embedding of its own cannot be read through vLLM.")
        names = ["embed.hook_out"]
        names += [f"blocks.{s.layer}.{'attn' if s.kind == 'attn' else 'mlp'}.hook_out" for s in architecture.sublayers]
        end = f"blocks.{len(architecture.blocks) - 1}.hook_out"
        if missing := [name for name in [*names, end] if name not in self.driver.supported_hook_points]:
            raise InputError(f"this engine does not capture {missing[0]}, so its model cannot be decomposed.")
        done: list[dict[str, Tensor]] = []
        for number, ids in enumerate(rows):
            mine = (of == number).nonzero()[:, 0]
            outputs = self.driver.forward([list(ids)], capture=(), return_logits=False).raw_output
            request = outputs[0].request_id if isinstance(outputs, list) else None
            answer = self._rpc(
                project_captures, request, plan, names, end, HEADS, at[mine].tolist(), targets[mine].tolist()
            )
            self.received += sum(len(x["data"]) for x in answer.values())
            done.append({name: decode_tensor(x) for name, x in answer.items()})
        # Rows were read one after another, and contexts of one row together.
        order = torch.cat([(of == number).nonzero()[:, 0] for number in range(len(rows))]).argsort()
        together = {name: torch.cat([x[name] for x in done]) for name in done[0]}
        return {name: x if name == "split" else x[order] for name, x in together.items()}


def read_rows(worker: Any, heads: Sequence[str], count: int) -> Any:
    """Some rows of the unembedding, in the worker."""
    from transformer_lens.model_bridge.sources.vllm.worker_extension import encode_tensor

    head = _unembedding(worker, heads)
    return encode_tensor(head.weight[sample_rows(head, count)])


def project_captures(
    worker: Any,
    request: str | None,
    plan: dict[str, Any],
    names: Sequence[str],
    end: str,
    heads: Sequence[str],
    at: list[int],
    targets: list[list[int]],
) -> dict[str, Any]:
    """The contributions of one request, from what its pass left in the worker, as the RPC carries tensors."""
    from transformer_lens.model_bridge.sources.vllm.worker_extension import encode_tensor

    def captured(name: str) -> Tensor:
        if request is None:
            return worker._tl_buffers[name][at]
        keys = [key for key in worker._tl_accum if key[1] == name and key[0].split("-")[0] == request.split("-")[0]]
        assert len(keys) == 1, f"{len(keys)} captures of {name} for request {request}"
        return torch.cat(worker._tl_accum[keys[0]])[at]

    head = _unembedding(worker, heads)
    weight, bias = head.weight[: plan["outputs"]], getattr(head, "bias", None)
    normed = captured("ln_final.hook_normalized").to(weight.device, torch.promote_types(weight.dtype, torch.float32))
    unembedded = normed @ weight.to(normed.dtype).T
    if bias is not None:
        bias = bias[: plan["outputs"]]
        unembedded = unembedded + bias.to(normed.dtype)
    logits = unembedded if plan["cap"] is None else plan["cap"] * torch.tanh(unembedded / plan["cap"])
    logits = logits * plan["multiplier"]
    writes = [captured(name) for name in names]
    result = project(plan, torch.tensor(targets), writes, {}, captured(end), unembedded, logits, (weight, bias))
    return {name: encode_tensor(x) for name, x in result.items()}


def _unembedding(worker: Any, heads: Sequence[str]) -> Any:
    from transformer_lens.model_bridge.sources.vllm.worker_extension import resolve_dot_path

    return next(x for path in heads if (x := resolve_dot_path(worker.model_runner.model, path)) is not None)

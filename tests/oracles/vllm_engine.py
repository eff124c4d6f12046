"""A double of vLLM for TransformerLens' own driver, worker extension and overlay: no GPU, no vLLM.

`LLM` here answers what `VLLMDriver` asks of vLLM's: requests of token ids go through a Hugging Face model in eager
mode, whose modules have the names that vLLM gives them, and the hooks are TransformerLens' own. What is not vLLM's is
its kernels and its scheduling. `serve` puts it behind a socket, and `python -m tests.oracles.vllm_engine PORT OUT` is a
client that measures a study with it.
"""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from multiprocessing.managers import BaseManager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.model_bridge.remote_bridge import RemoteBridge
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_config_from_hf
from transformer_lens.model_bridge.sources.vllm.driver import VLLMDriver
from transformer_lens.model_bridge.sources.vllm.overlays import get_overlay
from transformer_lens.model_bridge.sources.vllm.plugin import _make_capture_hook
from transformer_lens.model_bridge.sources.vllm.worker_extension import TLWorkerExtension, resolve_dot_path

LONGEST = 64


class Worker(TLWorkerExtension):
    """What vLLM's worker holds after TransformerLens' plugin has loaded a model into it."""

    def __init__(self, network: Any, specs: dict[str, tuple[str, int]]) -> None:
        processor = SimpleNamespace(scale=1.0 / getattr(network.config, "logits_scaling", 1.0), soft_cap=None)
        network.logits_processor = processor
        self.model_runner = SimpleNamespace(model=network)
        self._tl_buffers, self._tl_scale_buffers, self._tl_bias_buffers = {}, {}, {}
        self._tl_capture_flags, self._tl_hook_handles, self._tl_absent_hooks = {}, [], set()
        for name, (path, width) in specs.items():
            room = torch.zeros(LONGEST, width, dtype=network.dtype)
            affine = torch.ones(width, dtype=network.dtype), torch.zeros(width, dtype=network.dtype)
            flag = torch.ones(1, dtype=torch.int64)
            self._tl_buffers[name], self._tl_capture_flags[name] = room, flag
            self._tl_scale_buffers[name], self._tl_bias_buffers[name] = affine
            hook = _make_capture_hook(room, *affine, torch.zeros(1, dtype=torch.int64), flag)
            self._tl_hook_handles.append(_on_tokens(resolve_dot_path(network, path), hook))


def _on_tokens(module: Any, hook: Any) -> Any:
    """vLLM's modules return [token, d], Hugging Face's [row, token, d]: one row here."""

    def on_output(module: Any, args: Any, output: Any) -> Any:
        x, *rest = output if isinstance(output, tuple) else (output,)
        changed = hook(module, args, x[0])[None]
        return (changed, *rest) if isinstance(output, tuple) else changed

    return module.register_forward_hook(on_output)


class LLM:
    """vLLM's engine of one rank; it dies, as a connection does, after `lives` requests."""

    def __init__(self, network: Any, specs: dict[str, tuple[str, int]], ranks: int = 1) -> None:
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(hf_config=network.config))
        # A copy: what is compared with it runs here, without its hooks.
        self.worker = Worker(copy.deepcopy(network), specs)
        self.ranks, self.requests, self.lives = ranks, 0, sys.maxsize

    def generate(self, prompts: list[Any], sampling_params: Any) -> list[Any]:
        """Run requests of token ids."""
        for prompt in prompts:
            if self.requests >= self.lives:
                raise ConnectionError("the engine is gone")
            self.requests += 1
            with torch.no_grad():
                self.worker.model_runner.model(input_ids=torch.tensor([prompt.prompt_token_ids]), use_cache=False)
        return [SimpleNamespace(request_id=str(i), outputs=[]) for i in range(len(prompts))]

    def collective_rpc(self, method: Any, args: tuple = ()) -> list[Any]:
        """Call a method of every worker, or a function with every worker."""
        call = getattr(self.worker, method) if isinstance(method, str) else lambda *a: method(self.worker, *a)
        return [call(*args) for _ in range(self.ranks)]


def stub_vllm(monkeypatch: Any) -> None:
    """What TransformerLens' driver imports from vLLM while it runs."""
    vllm, inputs = ModuleType("vllm"), ModuleType("vllm.inputs")
    vllm.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    inputs.TokensPrompt = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.inputs", inputs)


def remote_bridge(network: Any, tokenizer: Any = None, ranks: int = 1, llm: Any = None) -> tuple[RemoteBridge, LLM]:
    """A RemoteBridge over the double, as `boot_vllm` puts it together; over `llm` where one runs already."""
    name = type(network).__name__
    overlay, config = get_overlay(name), network.config
    adapter = ArchitectureAdapterFactory.select_architecture_adapter(
        build_bridge_config_from_hf(config, name, "a-model", network.dtype)
    )
    llm = LLM(network, overlay.capture_specs(config), ranks) if llm is None else llm
    driver = VLLMDriver(llm, adapter, tokenizer, overlay, config, LONGEST)
    return RemoteBridge(adapter, tokenizer, driver), llm


class _Server(BaseManager):
    """Hands calls of clients to an engine."""


class _Calls:
    """An engine's methods by name; arguments and answers are pickled here, as a manager would share tensors' memory."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def call(self, request: bytes) -> bytes:
        """The pickled answer to a pickled (method, arguments by name); for "config" the model's configuration."""
        name, arguments = pickle.loads(request)
        config = self.llm.llm_engine.model_config.hf_config
        return pickle.dumps(config if name == "config" else getattr(self.llm, name)(**arguments))


def serve(llm: LLM) -> int:
    """Answer clients of an engine until this process ends; the port."""
    _Server.register("engine", callable=lambda: _Calls(llm))
    server = _Server(address=("127.0.0.1", 0), authkey=b"double").get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.address[1])


def main(port: str, out: str) -> None:
    """A client: the study of `tests/model/test_remote.py` in shards of eight rows."""
    import pytest

    import layerdiv_tl as ld
    from layerdiv_tl.studies import shards

    stub_vllm(pytest.MonkeyPatch())
    shards.ROWS = 8
    _Server.register("engine", exposed=["call"])
    server = _Server(address=("127.0.0.1", int(port)), authkey=b"double")
    server.connect()
    proxy = server.engine()  # type: ignore[attr-defined]

    def ask(name: str, **arguments: Any) -> Any:
        return pickle.loads(proxy.call(pickle.dumps((name, arguments))))

    llm = SimpleNamespace(
        llm_engine=SimpleNamespace(model_config=SimpleNamespace(hf_config=ask("config"))),
        generate=lambda prompts, sampling_params: ask("generate", prompts=prompts, sampling_params=sampling_params),
        collective_rpc=lambda method, args=(): ask("collective_rpc", method=method, args=args),
    )
    model = ld.load_model("zoo/d1")  # its configuration and tokenizer
    bridge, _ = remote_bridge(model.hf_model, model.tokenizer, llm=llm)
    ld.run_study({"m": bridge}, ld.task("synthetic/recall", limit=40), out=out)


if __name__ == "__main__":
    main(*sys.argv[1:])

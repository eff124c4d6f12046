"""A double of two devices on a CPU: tensors that say where they lie, and operations that refuse to mix them.

PyTorch's own backend for Python code (`privateuseone`) gives the devices; a tensor there holds one on the CPU that has
its numbers. As on GPUs, operands must share a device, except for numbers without a dimension and indices on the CPU;
only `.to`, `.cpu` and `copy_` cross over. Not those of GPUs: kernels, memory, streams, rounding, gradients.

The backend is registered for a whole process: run it in one of its own, as `python -m tests.oracles.two_devices` does.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.utils.backend_registration as backend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "privateuseone"
DEVICES = [torch.device(NAME, number) for number in range(2)]
_aten = torch.ops.aten
_MOVES = (_aten._to_copy.default, _aten.copy_.default)
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default)
_tensor, _as_tensor = torch.tensor, torch.as_tensor


class Far(torch.Tensor):
    """A tensor on one of the devices; `held` has its numbers."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device) -> Any:
        """A tensor that says that it lies on a device."""
        layout: dict[str, Any] = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=device, **layout)

    def __init__(self, held: torch.Tensor, device: torch.device) -> None:
        self.held = held

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.held.tolist()

    def detach(self) -> Far:
        return Far(self.held.detach(), self.device)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_index(index), value)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


class TwoDevices(TorchDispatchMode):
    """While it is entered, tensors can be made on the devices and moved there."""

    def __enter__(self) -> TwoDevices:
        # PyTorch makes a tensor from Python's numbers past every mode.
        torch.tensor, torch.as_tensor = (_moved(make) for make in (_tensor, _as_tensor))  # type: ignore[assignment]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.tensor, torch.as_tensor = _tensor, _as_tensor
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _Again(self):
            if (done := function.decompose(*args, **(kwargs or {}))) is not NotImplemented:
                return done
        return _run(function, args, kwargs or {})


class _Again:
    """A mode entered once more, for the parts of an operation."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        self.mode = mode

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self.mode)

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self.mode, *error)


def _moved(make: Any) -> Any:
    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        x = make(data, *args, **kwargs)
        return x if device is None else x.to(device)

    return made


def _index(index: Any) -> Any:
    some = index if isinstance(index, tuple) else (index,)
    return tuple(_tensor(list(i)) if isinstance(i, list | tuple | range) else i for i in some)


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    asked = kwargs.get("device")
    if function in _MOVES:
        devices = {args[0].device}
    elif function in _INDEXED:
        devices = {args[0].device, *(x.device for x in given if x.device.type != "cpu")}
    else:
        devices = {x.device for x in given if x.dim() or x.device.type != "cpu"} or {x.device for x in given}
    if len(devices) > 1:
        raise RuntimeError(f"{function} of tensors on {' and '.join(sorted(map(str, devices)))}")
    device = next(iter(devices), torch.device("cpu")) if asked is None else torch.device(asked)
    far = device.type == NAME
    device = torch.device(NAME, 0) if far and device.index is None else device
    plain, named = tree_map(lambda x: x.held if isinstance(x, Far) else x, (args, kwargs))
    done = function(*plain, **(named | {"device": torch.device("cpu")} if far and asked is not None else named))
    own = {id(x.held): x for x in given if isinstance(x, Far)}  # what an operation in place returns

    def back(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or (id(x) in own and own[id(x)].device == device):
            return own.get(id(x), x)
        return Far(x, device) if far else x

    return tree_map(back, done)


class _Module(backend._DummyBackendModule):
    def device_count(self) -> int:
        return len(DEVICES)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16]


def spread(model: Any) -> Any:
    """A model with the second half of its blocks, its final norm and its unembedding on the second device.

    With the hooks of accelerate's `dispatch_model`, which bring what a module is given to where its weights are.
    """
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    import layerdiv_tl as ld

    path, embedding = ld.load_model(model).path, model.get_input_embeddings()
    blocks = list(dict.fromkeys(writer.block for writer in path.writers if writer.block is not None))
    tied = path.unembed.weight is embedding.weight
    second = [*blocks[len(blocks) // 2 :], path.norm, *([] if tied else [path.unembed])]
    places = {module: DEVICES[1] for part in second for module in part.modules()}
    move(model, places)
    for module in (*blocks, path.norm, path.unembed, embedding, model):
        hook = AlignDevicesHook(places.get(module, DEVICES[0]), io_same_device=module is model, place_submodules=False)
        add_hook_to_module(module, hook)
    return model


def move(model: Any, places: Mapping[Any, torch.device]) -> Any:
    """A model with each module's weights on its device, by default the first; nothing brings inputs there."""
    for module in model.modules():
        device = places.get(module, DEVICES[0])
        for tensors in (module._parameters, module._buffers):
            for name, x in tensors.items():
                if x is not None:
                    tensors[name] = Far(x.detach(), device)
                    if tensors is module._parameters:
                        tensors[name] = torch.nn.Parameter(tensors[name], requires_grad=False)
    return model


def main() -> None:
    """Compare results of models on one far device, and on two, with those of the same models here."""
    import layerdiv_tl as ld
    from tests.oracles.families import FAMILIES

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("families", nargs="+")
    backend._setup_privateuseone_for_python_backend(backend_module=_Module())
    with TwoDevices():
        here, there = (torch.ones(3, device=device) for device in DEVICES)
        for mix in (lambda: here + there, lambda: here + torch.ones(3), lambda: here @ there):
            try:
                mix()
            except RuntimeError:
                continue
            raise AssertionError("the double mixes devices")
        assert float((here + there.to(here.device)).sum()) == 6.0
    prompts, options, text = [[5, 1, 4, 1, 5, 9, 2, 6], [3, 7, 8], [17, 11, 60, 6]], [7, 30, 2, 9], [[5, 1, 4, 9, 2]]
    measures: dict[str, Any] = {
        f"{name} {unit}": lambda m, f=f, unit=unit: f(m, unit)
        for unit in ("sublayer", "head", "neuron")
        for name, f in (
            ("contributions", lambda m, unit: ld.contributions(m, prompts, options, unit=unit).frame()),
            ("profile", lambda m, unit: ld.profile(m, text, unit=unit).frame()),
        )
    }
    measures |= {
        "sequences": lambda m: ld.contributions(m, prompts, [[[7, 9], [4], [5, 6, 8]]]).frame(),
        "continuation": lambda m: ld.continuation(m, prompts[0], [7, 9]).frame(),
        "top tokens of the model": lambda m: ld.top_tokens(m, text[0]),
        "top tokens": lambda m: ld.profile(m, text, unit="head").top_tokens("L1.H1", position=3),
        "skip": lambda m: ld.depth.skip(m, text).frame(),
        "lens": lambda m: ld.depth.logit_lens(m, text).frame(),
        "erase": lambda m: ld.depth.erase(m, text).frame(),
        "norms": lambda m: ld.depth.residual_norms(m, text).frame(),
        "maps": lambda m: ld.depth.map_layers(m, m, [*text, [6, 7, 8, 9]]).frame(),
        "effects": lambda m: ld.effects(m, prompts, options, labels=[0, 1, 2], unit="sublayer").frame(),
        "sources": lambda m: ld.source_tokens(m, text, options).frame(),
    }
    for family in parser.parse_args().families:
        whole, far, halves = (FAMILIES[family]() for _ in range(3))
        for model in (whole, far, halves):
            model.set_attn_implementation("eager")  # SDPA asks a device for its kernels
        with TwoDevices():
            moved = {"one device": move(far, {}), "two devices": spread(halves)}
        for name, measure in measures.items():
            try:
                expected = measure(whole)
            except ld.InputError:
                continue
            for where, model in moved.items():
                with TwoDevices():
                    found = measure(model)
                a, b = (x.select_dtypes("number").to_numpy(float, na_value=np.nan) for x in (expected, found))
                np.testing.assert_allclose(b, a, atol=2e-6, err_msg=f"{family} on {where}: {name}")
                print(family, where, name, float(np.nanmax(np.abs(a - b))), flush=True)


if __name__ == "__main__":
    main()

"""A Hugging Face model of which one place is changed at a time, by plain hooks; it knows nothing of the package."""

import numpy as np
import torch

# Where each family keeps its blocks, and which modules of one give exactly what is added to the stream.
PLACES = {
    "gpt2": ("transformer.h", "attn", "mlp"),
    "neox_parallel": ("gpt_neox.layers", "attention", "mlp"),
    "gemma2": ("model.layers", "post_attention_layernorm", "post_feedforward_layernorm"),
    "qwen3": ("model.layers", "self_attn", "mlp"),
    "stories": ("model.layers", "self_attn", "mlp"),
}
PLACES["llama"] = PLACES["qwen3"]


def first(x):
    return x[0] if isinstance(x, tuple) else x


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(a, dtype=float), np.asarray(b, dtype=float), rtol=tolerance, atol=tolerance)


class Plain:
    def __init__(self, root, family):
        blocks, attn, mlp = PLACES[family]
        self.root, self.blocks, self.parallel = root, root.get_submodule(blocks), family == "neox_parallel"
        self.parts = {"attn": attn, "mlp": mlp}
        self.final = next(
            getattr(root.base_model, n) for n in ("ln_f", "final_layer_norm", "norm") if hasattr(root.base_model, n)
        )

    def part(self, kind, layer):
        return self.blocks[layer] if kind == "layer" else self.blocks[layer].get_submodule(self.parts[kind])

    @torch.no_grad()
    def run(self, ids, outputs=(), inputs=()):
        """(streams entering every block and the norm, logits); `outputs`, `inputs`: [(module, function)]."""
        streams, handles = [], []
        for module, change in outputs:

            def out(module, args, kwargs, output, change=change):
                stream = args[0] if args else kwargs["hidden_states"]
                new = change(stream, first(output))
                return (new, *output[1:]) if isinstance(output, tuple) else new

            handles.append(module.register_forward_hook(out, with_kwargs=True))
        for module, change in inputs:

            def into(module, args, kwargs, change=change):
                if args:
                    return (change(args[0]), *args[1:]), kwargs
                return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

            handles.append(module.register_forward_pre_hook(into, with_kwargs=True))
        for module in [*self.blocks, self.final]:

            def see(module, args, kwargs):
                streams.append((args[0] if args else kwargs["hidden_states"])[0].clone())

            handles.append(module.register_forward_pre_hook(see, with_kwargs=True))
        logits = self.root(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        for handle in handles:
            handle.remove()
        return streams, logits

    def writes(self, ids):
        """What every attention and MLP of every layer writes."""
        seen = {}
        taps = [
            (self.part(kind, layer), lambda _, y, key=(kind, layer): seen.setdefault(key, y[0].clone())[None])
            for layer in range(len(self.blocks))
            for kind in ("attn", "mlp")
        ]
        streams, logits = self.run(ids, taps)
        return seen, streams, logits

    def skip(self, ids, kind, layer, where):
        """One pass in which one part of one layer writes nothing at the tokens `where`."""

        def nothing(stream, output):
            return torch.where(where[None, :, None], stream if kind == "layer" else 0.0, output)

        return self.run(ids, [(self.part(kind, layer), nothing)])

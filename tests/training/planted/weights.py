"""Handwritten weights: heads that each attend to one word and vote, in a Llama or a GPT-2. Three rules make them exact.

Outputs permute numbers: a member subtracts from one coordinate of the stream (its counterweight) what it adds to
another (a slot). The stream therefore always has sum 0 and mean square 1, and every norm is the identity, also under
ablation. All numbers are small integers, exact in float32; the norms' epsilon is negligible.

A head's scores increase towards the attended token in steps so large that all other exponentials are 0: by rotary angle
in a Llama (a fixed offset, on one slow pair of dimensions), by position in a GPT-2.

An MLP neuron is a switch: 64 times a coordinate of 0 or 1 goes into SiLU or GELU, which is exactly 0 or the identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, isqrt, sin
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from layerdiv_tl.components import Component

Shape = Literal["llama", "gpt2"]

WIDTH = 96
CONTEXT = 32  # maximal length of a text, in tokens
NEURONS = 4
EPSILON = 1e-30
# Neighboring tokens' scores differ by more than 2000, and exp(-750) is 0 in float64.
SHARP = 2.0**26
# One pair of dimensions turns by 1/20 per token, less than half a turn over the context: nearer tokens score higher.
ANGLE = 1 / 20
SWITCH = 64.0


class VoteLogits(NamedTuple):
    """A head's output for one word: logits of the options, and of every token of the vocabulary."""

    options: tuple[int, ...] = ()
    everywhere: int = 0


@dataclass(frozen=True)
class WitnessHead:
    """A head that attends to one witness's word and writes `votes[word]` (distinct nonzero logits); 0 for others."""

    layer: int
    index: int
    witness: int
    votes: Mapping[str, VoteLogits]

    @property
    def component(self) -> Component:
        """The head."""
        return Component("head", self.layer, self.index)


@dataclass(frozen=True)
class EraserMLP:
    """An MLP that subtracts a head's vote (1 logit for one option) from the stream."""

    layer: int
    erased: WitnessHead

    @property
    def component(self) -> Component:
        """The MLP."""
        return Component("mlp", self.layer)


Member = WitnessHead | EraserMLP


class _Coordinates:
    """The stream's coordinates by name, allocated at first use."""

    def __init__(self) -> None:
        self._index: dict[Any, int] = {}

    def of(self, *name: Any) -> int:
        """Return the coordinate of this name."""
        return self._index.setdefault(name, len(self._index))

    def vote(self, member: Member, logits: VoteLogits) -> Float[Tensor, " d"]:
        """Make the output that moves these logits from the member's counterweights to its slots."""
        output = torch.zeros(WIDTH, dtype=torch.float64)
        for slot, amount in [*enumerate(logits.options), ("everywhere", logits.everywhere)]:
            if amount:
                output[self.of("slot", member.component, slot)] += amount
                output[self.of("counterweight", member.component, amount)] -= amount
        return output


def build(
    shape: Shape,
    members: Sequence[Member],
    words: Sequence[str],
    option_ids: Sequence[int],
    vocabulary: Mapping[int, str],
    positions: Sequence[int],
    length: int,
) -> Any:
    """Build a Llama or GPT-2 in float64 in which only `members` write to the stream.

    Args:
        words, vocabulary, option_ids: The witnesses' words, every token's word by its id, and the tokens of the
            options.
        positions, length: Positions of the witnesses' words in a prompt, and its number of tokens.
    """
    layers, heads = 1 + max(m.layer for m in members), 1 + max(m.index for m in members if isinstance(m, WitnessHead))
    body = (_Llama if shape == "llama" else _GPT2)(len(vocabulary), layers, heads)
    coordinates = body.coordinates
    embeddings, unembeddings = torch.zeros(2, len(vocabulary), WIDTH, dtype=torch.float64)
    counterweights: dict[int, int] = {}
    for member in members:
        if isinstance(member, EraserMLP):
            for slot in range(len(option_ids)):
                vote = VoteLogits(tuple(int(option == slot) for option in range(len(option_ids))))
                source = coordinates.of("slot", member.erased.component, slot)
                body.neuron(member.layer, slot, source, -coordinates.vote(member.erased, vote))
            continue
        for number, (word, logits) in enumerate(member.votes.items()):
            body.channel(member, number, coordinates.of("word", word), coordinates.vote(member, logits))
            for amount in filter(None, (*logits.options, logits.everywhere)):
                counterweights[coordinates.of("counterweight", member.component, amount)] = amount
        body.attend(member, positions[member.witness], length)
        for slot, option in enumerate(option_ids):
            unembeddings[option, coordinates.of("slot", member.component, slot)] = 1.0
        unembeddings[:, coordinates.of("slot", member.component, "everywhere")] = 1.0
    # Folding a LayerNorm centers the unembedding: rows must sum to 0, so the remainder goes to an empty coordinate.
    unembeddings[:, coordinates.of("nothing")] = -unembeddings.sum(1)
    for token, word in vocabulary.items():
        embeddings[token, coordinates.of("word", word if word in words else None)] = 1.0
    constants = {**counterweights, coordinates.of("one"): 1, **body.position_constants()}
    embeddings[:, list(constants)] = torch.tensor(list(constants.values()), dtype=torch.float64)
    for number, amount in enumerate(_ballast([1, *constants.values()])):
        embeddings[:, coordinates.of("ballast", number)] = float(amount)
    body.model.get_input_embeddings().weight.copy_(embeddings)
    body.model.get_output_embeddings().weight.copy_(unembeddings)
    return body.model


def _ballast(amounts: Sequence[int]) -> list[int]:
    """Return integers that, together with the given ones, sum to 0 and whose squares sum to WIDTH."""
    ballast = [-amount for amount in amounts]
    rest = WIDTH // 2 - sum(amount**2 for amount in amounts)
    while rest:
        largest = isqrt(rest)
        ballast += [largest, -largest]
        rest -= largest**2
    return ballast


class _Body:
    """A model of zeros into which single weights are written."""

    def __init__(self, causal_lm: Any, vocabulary: int, layers: int, heads: int, **options: Any) -> None:
        options |= {"num_hidden_layers": layers, "num_attention_heads": heads, "max_position_embeddings": CONTEXT}
        options |= {"tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}
        config = causal_lm.config_class(vocab_size=vocabulary, hidden_size=WIDTH, **options)
        self.model = causal_lm(config).to(torch.float64).eval().requires_grad_(False)
        self.coordinates, self.head_width = _Coordinates(), WIDTH // heads
        for name, parameter in self.model.named_parameters():
            is_gain = name.endswith("weight") and parameter.dim() == 1
            parameter.fill_(1.0 if is_gain else 0.0)

    def position_constants(self) -> dict[int, int]:
        """Return the coordinates that the embedding uses for positions."""
        return {}


class _Llama(_Body):
    def __init__(self, *sizes: int) -> None:
        from transformers import LlamaForCausalLM

        # The middle pair turns by base^(-1/2) per token.
        rope = {"rope_type": "default", "rope_theta": ANGLE**-2}
        own: Any = {"intermediate_size": NEURONS, "rms_norm_eps": EPSILON, "rope_parameters": rope}
        super().__init__(LlamaForCausalLM, *sizes, **own)

    def attend(self, head: WitnessHead, position: int, length: int) -> None:
        attention, first = self._attention(head), head.index * self.head_width
        one, half, pair = self.coordinates.of("one"), self.head_width // 2, first + self.head_width // 4
        angle = ANGLE * (length - 1 - position)
        attention.q_proj.weight[pair, one] = SHARP * cos(angle)
        attention.q_proj.weight[pair + half, one] = -SHARP * sin(angle)
        attention.k_proj.weight[pair, one] = 1.0

    def channel(self, head: WitnessHead, number: int, coordinate: int, output: Tensor) -> None:
        attention, channel = self._attention(head), head.index * self.head_width + number
        attention.v_proj.weight[channel, coordinate] = 1.0
        attention.o_proj.weight[:, channel] = output

    def neuron(self, layer: int, number: int, coordinate: int, output: Tensor) -> None:
        mlp = self.model.model.layers[layer].mlp
        mlp.gate_proj.weight[number, coordinate] = SWITCH
        mlp.up_proj.weight[number, self.coordinates.of("one")] = 1.0
        mlp.down_proj.weight[:, number] = output / SWITCH

    def _attention(self, head: WitnessHead) -> Any:
        return self.model.model.layers[head.layer].self_attn


class _GPT2(_Body):
    def __init__(self, *sizes: int) -> None:
        from transformers import GPT2LMHeadModel

        super().__init__(GPT2LMHeadModel, *sizes, n_inner=NEURONS, layer_norm_epsilon=EPSILON)

    def position_constants(self) -> dict[int, int]:
        counterweight = self.coordinates.of("counterweight", "position")
        self.model.transformer.wpe.weight[:, counterweight] = -1.0
        for position in range(CONTEXT):
            self.model.transformer.wpe.weight[position, self.coordinates.of("position", position)] = 1.0
        return {counterweight: 1}

    def attend(self, head: WitnessHead, position: int, length: int) -> None:
        query_key_value, first = self._attention(head).c_attn.weight, head.index * self.head_width
        query_key_value[self.coordinates.of("one"), first] = SHARP
        for token in range(CONTEXT):
            query_key_value[self.coordinates.of("position", token), WIDTH + first] = -abs(token - position)

    def channel(self, head: WitnessHead, number: int, coordinate: int, output: Tensor) -> None:
        attention, channel = self._attention(head), head.index * self.head_width + number
        attention.c_attn.weight[coordinate, 2 * WIDTH + channel] = 1.0
        attention.c_proj.weight[channel] = output

    def neuron(self, layer: int, number: int, coordinate: int, output: Tensor) -> None:
        mlp = self.model.transformer.h[layer].mlp
        mlp.c_fc.weight[coordinate, number] = SWITCH
        mlp.c_proj.weight[number] = output / SWITCH

    def _attention(self, head: WitnessHead) -> Any:
        return self.model.transformer.h[head.layer].attn

"""Weights written by hand: heads that read one word each and write what it says, in a Llama or a GPT-2.

Three rules make everything such a model writes exact, whatever the text.

A write only moves numbers. What it puts into one coordinate of the stream (a slot) it takes out of another
(a coin), so the stream always holds the same numbers in another order, and they sum to 0 and have mean
square 1. Every norm, RMSNorm or LayerNorm, therefore hands its input on unchanged, at every junction, also
where other components are skipped; the epsilon is too small to be seen in either precision. All numbers are
small whole ones, which float32, in which a Llama computes its norms, holds exactly.

A head attends to one token. Its scores grow towards the token it reads in steps so large that all other
tokens' exponentials are 0, in float32 too. A Llama finds the place by rotary angle (so many tokens back, on
one slow pair of dimensions), a GPT-2 by its positions, one coordinate each.

An MLP neuron is a switch. 64 times a coordinate that is 0 or 1 goes into SiLU or GELU, which there are 0
and the identity without any rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, isqrt, sin
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...components import Component
from ...errors import InputError

Shape = Literal["llama", "gpt2"]

WIDTH = 96
CONTEXT = 32  # the longest text, in tokens
NEURONS = 4
EPSILON = 1e-30
# Neighboring tokens' scores differ by more than 2000, and exp(-750) is 0 in float64.
SHARP = 2.0**26
# One pair of dimensions turns by 1/20 a token, less than half a turn over the whole context: nearer is always higher.
ANGLE = 1 / 20
SWITCH = 64.0


class Say(NamedTuple):
    """What one word makes a head write: logits of the options, and of every token of the vocabulary."""

    options: tuple[int, ...] = ()
    everywhere: int = 0


@dataclass(frozen=True)
class Reader:
    """A head that reads the word of one witness and writes what `says` has for it; nothing for other words.

    The numbers that one word makes it write must differ, and none is 0 unless nothing is written.
    """

    layer: int
    index: int
    witness: int
    says: Mapping[str, Say]

    @property
    def component(self) -> Component:
        """The head."""
        return Component("head", self.layer, self.index)


@dataclass(frozen=True)
class Eraser:
    """An MLP that takes a head's vote (1 for one option) back out of the stream."""

    layer: int
    of: Reader

    @property
    def component(self) -> Component:
        """The MLP."""
        return Component("mlp", self.layer)


Member = Reader | Eraser


class _Stream:
    """Which coordinate holds what, given out as they are asked for."""

    def __init__(self) -> None:
        self._at: dict[Any, int] = {}

    def at(self, *name: Any) -> int:
        """The coordinate of this name."""
        return self._at.setdefault(name, len(self._at))

    def move(self, member: Member, say: Say) -> Float[Tensor, " d"]:
        """The write that brings what is said from the member's coins to its slots."""
        write = torch.zeros(WIDTH, dtype=torch.float64)
        for slot, amount in [*enumerate(say.options), ("everywhere", say.everywhere)]:
            if amount:
                write[self.at("slot", member.component, slot)] += amount
                write[self.at("coin", member.component, amount)] -= amount
        return write


def build(
    shape: Shape,
    members: Sequence[Member],
    words: Sequence[str],
    option_ids: Sequence[int],
    vocabulary: Mapping[int, str],
    places: Sequence[int],
    length: int,
) -> Any:
    """A Llama or GPT-2 in float64 whose only writes are those of `members`.

    words, vocabulary
        The words that say something, and every token's word by its id.
    option_ids
        The tokens of the options.
    places, length
        The tokens at which the witnesses' words stand, and how many tokens a prompt has.

    Raises InputError for a shape that is not known.
    """
    if shape not in ("llama", "gpt2"):
        raise InputError(f"shape={shape!r} is unknown: use 'llama' or 'gpt2'.")
    layers, heads = 1 + max(m.layer for m in members), 1 + max(m.index for m in members if isinstance(m, Reader))
    make = _Llama if shape == "llama" else _GPT2
    body = make(len(vocabulary), layers, heads)
    stream = body.stream
    embeddings = torch.zeros(len(vocabulary), WIDTH, dtype=torch.float64)
    unembeddings = torch.zeros(len(vocabulary), WIDTH, dtype=torch.float64)
    coins: dict[int, int] = {}
    for member in members:
        if isinstance(member, Eraser):
            for slot in range(len(option_ids)):
                vote = Say(tuple(int(option == slot) for option in range(len(option_ids))))
                seen = stream.at("slot", member.of.component, slot)
                body.neuron(member.layer, slot, seen, -stream.move(member.of, vote))
            continue
        for number, (word, say) in enumerate(member.says.items()):
            here = body.value(member, number, stream.at("word", word))
            body.output(member, here, stream.move(member, say))
            for amount in filter(None, (*say.options, say.everywhere)):
                coins[stream.at("coin", member.component, amount)] = amount
        body.attend(member, places[member.witness], length)
        for slot, option in enumerate(option_ids):
            unembeddings[option, stream.at("slot", member.component, slot)] = 1.0
        unembeddings[:, stream.at("slot", member.component, "everywhere")] = 1.0
    # A LayerNorm takes the mean out of what reads it: there must be none, so the rest is read where nothing is.
    unembeddings[:, stream.at("nothing")] = -unembeddings.sum(1)
    for token, word in vocabulary.items():
        embeddings[token, stream.at("word", word if word in words else None)] = 1.0
    fixed = {**coins, stream.at("one"): 1, **body.positions()}
    embeddings[:, list(fixed)] = torch.tensor(list(fixed.values()), dtype=torch.float64)
    for number, amount in enumerate(_ballast([1, *fixed.values()])):
        embeddings[:, stream.at("ballast", number)] = float(amount)
    return body.finished(embeddings, unembeddings)


def _ballast(amounts: Sequence[int]) -> list[int]:
    """Whole numbers that, with those given, sum to 0 and have squares that sum to WIDTH."""
    ballast = [-amount for amount in amounts]
    rest = WIDTH // 2 - sum(amount**2 for amount in amounts)
    while rest:
        largest = isqrt(rest)
        ballast += [largest, -largest]
        rest -= largest**2
    return ballast


class _Body:
    """A model of zeros, into which single weights are written."""

    def __init__(self, model: Any) -> None:
        self.model = model.to(torch.float64).eval().requires_grad_(False)
        self.stream = _Stream()
        for name, parameter in self.model.named_parameters():
            is_gain = name.endswith("weight") and parameter.dim() == 1
            parameter.fill_(1.0 if is_gain else 0.0)

    def positions(self) -> dict[int, int]:
        """What the embedding holds for the sake of positions."""
        return {}

    def finished(self, embeddings: Tensor, unembeddings: Tensor) -> Any:
        self.model.get_input_embeddings().weight.copy_(embeddings)
        self.model.get_output_embeddings().weight.copy_(unembeddings)
        return self.model


class _Llama(_Body):
    def __init__(self, vocabulary: int, layers: int, heads: int) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        self.width = WIDTH // heads
        # The pair in the middle turns by base^(-1/2) a token.
        rope = {"rope_type": "default", "rope_theta": ANGLE**-2}
        super().__init__(
            LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=vocabulary,
                    hidden_size=WIDTH,
                    intermediate_size=NEURONS,
                    num_hidden_layers=layers,
                    num_attention_heads=heads,
                    max_position_embeddings=CONTEXT,
                    rms_norm_eps=EPSILON,
                    rope_parameters=rope,
                    tie_word_embeddings=False,
                    bos_token_id=None,
                    eos_token_id=None,
                )
            )
        )

    def attend(self, reader: Reader, place: int, length: int) -> None:
        attention, first = self.model.model.layers[reader.layer].self_attn, reader.index * self.width
        one, half, pair = self.stream.at("one"), self.width // 2, first + self.width // 4
        angle = ANGLE * (length - 1 - place)
        attention.q_proj.weight[pair, one] = SHARP * cos(angle)
        attention.q_proj.weight[pair + half, one] = -SHARP * sin(angle)
        attention.k_proj.weight[pair, one] = 1.0

    def value(self, reader: Reader, number: int, coordinate: int) -> int:
        here = reader.index * self.width + number
        self.model.model.layers[reader.layer].self_attn.v_proj.weight[here, coordinate] = 1.0
        return here

    def output(self, reader: Reader, here: int, write: Tensor) -> None:
        self.model.model.layers[reader.layer].self_attn.o_proj.weight[:, here] = write

    def neuron(self, layer: int, number: int, coordinate: int, write: Tensor) -> None:
        mlp = self.model.model.layers[layer].mlp
        mlp.gate_proj.weight[number, coordinate] = SWITCH
        mlp.up_proj.weight[number, self.stream.at("one")] = 1.0
        mlp.down_proj.weight[:, number] = write / SWITCH


class _GPT2(_Body):
    def __init__(self, vocabulary: int, layers: int, heads: int) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        self.width = WIDTH // heads
        super().__init__(
            GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=vocabulary,
                    n_positions=CONTEXT,
                    n_embd=WIDTH,
                    n_layer=layers,
                    n_head=heads,
                    n_inner=NEURONS,
                    layer_norm_epsilon=EPSILON,
                    tie_word_embeddings=False,
                    bos_token_id=None,
                    eos_token_id=None,
                )
            )
        )

    def positions(self) -> dict[int, int]:
        place = torch.zeros(CONTEXT, WIDTH, dtype=torch.float64)
        coin = self.stream.at("coin", "place")
        place[:, coin] = -1.0
        for token in range(CONTEXT):
            place[token, self.stream.at("place", token)] = 1.0
        self.model.transformer.wpe.weight.copy_(place)
        return {coin: 1}

    def attend(self, reader: Reader, place: int, length: int) -> None:
        joined, first = self._attention(reader).c_attn.weight, reader.index * self.width
        joined[self.stream.at("one"), first] = SHARP
        for token in range(CONTEXT):
            joined[self.stream.at("place", token), WIDTH + first] = -abs(token - place)

    def value(self, reader: Reader, number: int, coordinate: int) -> int:
        here = reader.index * self.width + number
        self._attention(reader).c_attn.weight[coordinate, 2 * WIDTH + here] = 1.0
        return here

    def output(self, reader: Reader, here: int, write: Tensor) -> None:
        self._attention(reader).c_proj.weight[here] = write

    def neuron(self, layer: int, number: int, coordinate: int, write: Tensor) -> None:
        mlp = self.model.transformer.h[layer].mlp
        mlp.c_fc.weight[coordinate, number] = SWITCH
        mlp.c_proj.weight[number] = write / SWITCH

    def _attention(self, reader: Reader) -> Any:
        return self.model.transformer.h[reader.layer].attn

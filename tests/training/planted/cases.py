"""The planted cases, and their measures in closed form.

In all prompts witnesses name the color of a car. Each member head attends
to one witness and adds 1 logit to the color named, so it is right as often as its witness. The rows are all
combinations of words, repeated in proportion to their probability: means over rows *are* the expectations. Information
terms are those of the members' votes (`estimator="vote"`).

K options, |L| members, p the probability of a right witness, h(p) = −p log2 p − (1−p) log2 (1−p).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import comb, log2

from layerdiv_tl.tasks.synthetic import COLORS

from .weights import EraserMLP, Member, VoteLogits, WitnessHead

UNSURE = "unsure"
# A witness is wrong in one of four equally likely outcomes: p = 3/4.
OUTCOMES = (True, True, True, False)

# The words of each row's witnesses, and its label.
Rows = list[tuple[tuple[str, ...], int]]


@dataclass(frozen=True, eq=False)
class Case:
    """A planted case and its expected measures.

    Attributes:
        bias, diversity, bias_shift, diversity_shift, accuracy: One number per member; empty shift terms are 0. The
            defaults are those of two heads right in 3 of 4 rows. A tie of their sum goes to the first option, which is
            right in half of the ties.
        cosine, cosine_centered: Cosines between the first two members.
    """

    members: tuple[Member, ...]
    rows: Rows
    diversity: tuple[float, ...]
    cosine: float
    cosine_centered: float
    relevancy: float
    redundancy: float
    conditional_redundancy: float
    bias: tuple[float, ...] = (1 / 4, 1 / 4)
    bias_shift: tuple[float, ...] = ()
    diversity_shift: tuple[float, ...] = ()
    accuracy: tuple[float, ...] = (3 / 4, 3 / 4)
    ensemble_accuracy: float = 3 / 4
    options: int = 2


def _voter(layer: int, index: int, witness: int) -> WitnessHead:
    """Make a head that adds 1 logit to the color (of two) that its witness names, and 0 if it names none."""
    return WitnessHead(layer, index, witness, {COLORS[0]: VoteLogits((1, 0)), COLORS[1]: VoteLogits((0, 1))})


def _entropy(p: float) -> float:
    """Compute h(p) in bits."""
    return -p * log2(p) - (1 - p) * log2(1 - p)


def _colors(*votes: int) -> tuple[str, ...]:
    return tuple(COLORS[vote] for vote in votes)


def _independent() -> Case:
    """Two fair witnesses; a coin toss decides whose word is the label.

    So each is right in p = 3/4: bias 2(1−p)/K = 1/4. The two agree in c = 1/2: the mean of differing votes
    is 1/2 off each, diversity (1−c)/4. If votes differ, the label is a coin toss: I(U;Y) = 1 − 1/2. The votes
    are independent, TC(U) = 0, but not conditionally on the label.
    """
    rows = [(_colors(a, b), (a, b)[coin]) for a, b, coin in product(range(2), repeat=3)]
    informed = 1 - _entropy(3 / 4)
    return Case(
        members=(_voter(0, 0, 0), _voter(1, 1, 1)),
        rows=rows,
        diversity=(1 / 8, 1 / 8),
        cosine=1 / 2,
        cosine_centered=0.0,
        relevancy=2 * informed,
        redundancy=0.0,
        conditional_redundancy=1 / 2 - 2 * informed,
    )


def _copied() -> Case:
    """Both heads attend to the first witness, right in p = 3/4; none attends to the second.

    Diversity 0, so the loss is the bias. One vote determines the other: TC(U) = H(u) = 1 bit,
    TC(U|Y) = h(p), I(U;Y) = 1 − h(p) = half of the relevancy.
    """
    rows = [(_colors(y if right else 1 - y, other), y) for y, right, other in product(range(2), OUTCOMES, range(2))]
    return Case(
        members=(_voter(0, 0, 0), _voter(1, 1, 0)),
        rows=rows,
        diversity=(0.0, 0.0),
        cosine=1.0,
        cosine_centered=1.0,
        relevancy=2 * (1 - _entropy(3 / 4)),
        redundancy=1.0,
        conditional_redundancy=_entropy(3 / 4),
    )


def _complementary() -> Case:
    """Witnesses alternate: one is sure and right, the other unsure; a head writes 0 for an unsure witness.

    A head without output has bias 1/K = 1/2, a right one 0: 1/4 as in the other pairs. The mean of the two is
    half a vote, 1/2 off each: diversity 1/8, half of it in the shift, since only one head raises the options'
    mean. Each alone is right in 1/2 of the rows and tied in 1/2; together they are always right. As a vote, no
    output counts as the first option: P(vote = first) = 3/4, H(U) = 1.5, H(u|Y) = 1/2, H(U|Y) = 1/2 bit.
    """
    rows: Rows = []
    for y, first in product(range(2), (True, False)):
        rows.append(((COLORS[y], UNSURE) if first else (UNSURE, COLORS[y]), y))
    return Case(
        members=(_voter(0, 0, 0), _voter(1, 1, 1)),
        rows=rows,
        bias_shift=(1 / 8, 1 / 8),
        diversity=(1 / 8, 1 / 8),
        diversity_shift=(1 / 16, 1 / 16),
        cosine=0.0,
        cosine_centered=0.0,
        ensemble_accuracy=1.0,
        relevancy=2 * (_entropy(3 / 4) - 1 / 2),
        redundancy=2 * _entropy(3 / 4) - 3 / 2,
        conditional_redundancy=1 / 2,
    )


def _together() -> Case:
    """The witness names the right color c of three; each head writes 2 for c and 3 for a wrong color.

    One prefers c + 1, the other c + 2, so each alone is always wrong, and their sum (4, 3, 3) always right.
    Bias (1² + 3²)/3; ū = (2, 1½, 1½), loss (1 + 2·(3/2)²)/3, diversity 2·(3/2)²/3. Centered, their cosine is
    (4 − 25/3)/(13 − 25/3) = −13/14. A wrong vote determines the label just as a right one: relevancy 2 log2 3,
    redundancy log2 3.
    """
    first, second = (
        {COLORS[c]: VoteLogits(tuple(2 * (k == c) + 3 * (k == (c + step) % 3) for k in range(3))) for c in range(3)}
        for step in (1, 2)
    )
    return Case(
        members=(WitnessHead(0, 0, 0, first), WitnessHead(1, 1, 0, second)),
        rows=[(_colors(c, other), c) for c, other in product(range(3), repeat=2)],
        options=3,
        bias=(10 / 3, 10 / 3),
        bias_shift=(16 / 9, 16 / 9),
        diversity=(3 / 2, 3 / 2),
        cosine=4 / 13,
        cosine_centered=-13 / 14,
        accuracy=(0.0, 0.0),
        ensemble_accuracy=1.0,
        relevancy=2 * log2(3),
        redundancy=log2(3),
        conditional_redundancy=0.0,
    )


def _shift() -> Case:
    """The first head votes with the first witness, p = 3/4; the second witness makes the second add s = ±2 everywhere.

    Centered, the second head is 0: bias 1/4, diversity (1/2)²/4. The rest is shift: means m = 1/2 and s, target 1/2,
    bias (s − 1/2)² = 17/4, diversity (s − 1/2)²/4. Skipping the second layer changes no probability.
    """
    rows = [(_colors(y if right else 1 - y, other), y) for y, right, other in product(range(2), OUTCOMES, range(2))]
    amount = {COLORS[0]: VoteLogits(everywhere=2), COLORS[1]: VoteLogits(everywhere=-2)}
    return Case(
        members=(_voter(0, 0, 0), WitnessHead(1, 1, 1, amount)),
        rows=rows,
        bias=(1 / 4, 17 / 4 + 1 / 4),
        bias_shift=(0.0, 17 / 4),
        diversity=(17 / 16 + 1 / 16,) * 2,
        diversity_shift=(17 / 16,) * 2,
        cosine=0.0,
        cosine_centered=float("nan"),  # the second head is 0 when centered, and has no direction
        accuracy=(3 / 4, 1 / 2),
        relevancy=1 - _entropy(3 / 4),
        redundancy=0.0,
        conditional_redundancy=0.0,
    )


def _undo() -> Case:
    """a: a head votes with the first witness, who guesses. −a: an MLP subtracts that. b: the second witness, p = 3/4.

    The logits are b alone, ū = b/3. With a·b = 1/2 on average: biases 2(1−½)/2, (4 + 2)/4 and 1/4;
    diversities (|a|² ∓ a·b·2/3 + |b|²/9)/2 for ±a, and (4/9)/2 for b. As votes a and −a are opposite and carry no
    information: TC(U) = TC(U|Y) = 1 bit. Without the first layer the MLP also writes 0 and no probability
    changes; without the second the logits are a + b.
    """
    rows = [(_colors(a, y if right else 1 - y), y) for y, right, a in product(range(2), OUTCOMES, range(2))]
    undone = _voter(0, 0, 0)
    return Case(
        members=(undone, EraserMLP(1, undone), _voter(2, 1, 1)),
        rows=rows,
        bias=(1 / 2, 3 / 2, 1 / 4),
        bias_shift=(0.0, 1.0, 0.0),
        diversity=(7 / 18, 13 / 18, 4 / 18),
        diversity_shift=(1 / 9, 4 / 9, 1 / 9),  # means ½, −½, ½ around 1/6
        cosine=-1.0,
        cosine_centered=-1.0,
        accuracy=(1 / 2, 1 / 2, 3 / 4),
        relevancy=1 - _entropy(3 / 4),
        redundancy=1.0,
        conditional_redundancy=1.0,
    )


def _votes() -> Case:
    """Five witnesses, right in p = 3/4; in a share s = 1/5 of the rows all repeat one of them.

    Two of them agree with probability c = s + (1 − s)(p² + (1−p)²) = 0.7; cosine c, centered 2c − 1.
    A wrong vote is off by 1 at both options, bias 1 − p; diversity (1 − 1/5)(1 − c)/2. The k
    voters for the first option are one of C(5, k) sets, each with probability (1 − s) pᵏ(1−p)⁵⁻ᵏ if it is right,
    plus s p or s (1−p) if all agree; entropies are sums over k. For each label there are 4⁵ rows of all
    combinations of four equally likely outcomes, and 4⁵/4 rows of one outcome repeated.
    """
    p, shared, count = 3 / 4, 1 / 5, 5
    rows: Rows = []
    for y in range(2):
        independent = list(product(OUTCOMES, repeat=count))
        repeated = [(right,) * count for right in OUTCOMES] * (len(independent) // 16)
        rows += [(_colors(*(y if right else 1 - y for right in row)), y) for row in independent + repeated]
    sets = [comb(count, k) for k in range(count + 1)]
    first = [(1 - shared) * p**k * (1 - p) ** (count - k) for k in range(count + 1)]  # if the first option is right
    first[0], first[-1] = first[0] + shared * (1 - p), first[-1] + shared * p
    given = -sum(n * x * log2(x) for n, x in zip(sets, first, strict=True))
    either = [(x + y) / 2 for x, y in zip(first, first[::-1], strict=True)]
    whole = -sum(n * x * log2(x) for n, x in zip(sets, either, strict=True))
    agree = shared + (1 - shared) * (p**2 + (1 - p) ** 2)
    majority = 0.0  # three or more of five independent voters are right
    for outcome in product((True, False), repeat=count):
        majority += (sum(outcome) >= 3) * p ** sum(outcome) * (1 - p) ** (count - sum(outcome))
    return Case(
        members=tuple(_voter(layer, 0, layer) for layer in range(count)),
        rows=rows,
        bias=(1 - p,) * count,
        diversity=((1 - 1 / count) * (1 - agree) / 2,) * count,
        cosine=agree,
        cosine_centered=2 * agree - 1,
        accuracy=(p,) * count,
        ensemble_accuracy=shared * p + (1 - shared) * majority,
        relevancy=count * (1 - _entropy(p)),
        redundancy=count - whole,
        conditional_redundancy=count * _entropy(p) - given,
    )


CASES: Mapping[str, Callable[[], Case]] = {
    "independent": _independent,
    "copied": _copied,
    "complementary": _complementary,
    "together": _together,
    "shift": _shift,
    "undo": _undo,
    "votes": _votes,
}

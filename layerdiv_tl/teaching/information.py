"""Notebook 04: information from a table, information in nobody, rows that an estimate needs, an AUC, a baseline."""

from __future__ import annotations

import numpy as np

from .exercises import exercise


def entropy(shares: np.ndarray) -> float:
    """−Σ p log2 p in bits; a share of 0 adds nothing. The notebook has the same function."""
    shares = np.asarray(shares, dtype=float).ravel()
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def _tables() -> list[tuple[np.ndarray]]:
    noisy, skewed = np.array([[0.375, 0.125], [0.125, 0.375]]), np.array([[0.5, 0.1], [0.0, 0.2], [0.1, 0.1]])
    return [(skewed,), (noisy,), (np.diag([0.5, 0.5]),), (np.full((2, 2), 0.25),)]


def _all_logs(joint: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float((joint * np.log2(joint / np.outer(joint.sum(1), joint.sum(0)))).sum())


@exercise(
    minutes=6,
    difficulty=2,
    importance=5,
    cases=_tables,
    axes="in bits",
    right="H(u) + H(Y) − H(u, Y), in bits, also where a cell is empty.",
    hints=(
        "I(u; Y) = H(u) + H(Y) − H(u, Y): three entropies of the one table.",
        "The shares of u are the table's sums over labels, joint.sum(1); those of Y are joint.sum(0).",
        "entropy(joint.sum(1)) and entropy(joint.sum(0)), added up, less entropy(joint).",
    ),
    mistakes={
        "that is nan: a cell of 0 adds nothing, but 0 · log 0 is nan in numpy. Leave such cells out.": _all_logs,
        "that is in nats. In bits, take log2.": lambda joint: (
            np.log(2) * (entropy(joint.sum(1)) + entropy(joint.sum(0)) - entropy(joint))
        ),
        "that is what stays unknown, H(Y|u). Subtract it from H(Y).": lambda joint: (
            entropy(joint) - entropy(joint.sum(1))
        ),
        "that is H(u|Y), what of the vote the label does not explain. Subtract it from H(u).": lambda joint: (
            entropy(joint) - entropy(joint.sum(0))
        ),
        "that is the entropy of both together, H(u, Y).": entropy,
        "joint[0] is a row of the table. The shares of u are its sums, joint.sum(1).": lambda joint: (
            entropy(joint[0]) + entropy(joint[1]) - entropy(joint)
        ),
        "H(u) is missing: three entropies of the table make I.": lambda joint: entropy(joint.sum(0)) - entropy(joint),
        "H(Y) is missing: three entropies of the table make I.": lambda joint: entropy(joint.sum(1)) - entropy(joint),
        "that is H(u) + H(Y): what both would have together if they shared nothing. Subtract H(u, Y).": lambda joint: (
            entropy(joint.sum(1)) + entropy(joint.sum(0))
        ),
    },
)
def mutual_information(joint: np.ndarray) -> float:
    """I(u; Y) in bits, of a table of probabilities [vote, label] that sums to 1."""
    return entropy(joint.sum(1)) + entropy(joint.sum(0)) - entropy(joint)


@exercise(
    minutes=4,
    difficulty=2,
    importance=3,
    cases=lambda: [(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))],
    axes="[row]",
    right="the label says whether the votes differ: for each value of one vote it is 0 and 1 equally often, and both "
    "votes together fix it.",
    hints=(
        "For each value of a, the label must be 0 in half of the rows and 1 in the other half. So too for each of b.",
        "Two of the four combinations have the label 1. 0, 0 has 0. If 0, 1 has 1, what is left for 1, 0 and 1, 1?",
        "The label is 1 where the votes differ. a and b are arrays: compare them with !=, or use ^.",
    ),
    mistakes={
        "the label is a's vote: a alone tells all.": lambda a, b: a,
        "the label is b's vote: b alone tells all.": lambda a, b: b,
        "0, 0 should have the label 0. The rest is right.": lambda a, b: 1 - (a ^ b),
        "a alone already tells something: where a is 0, the label is never 1.": lambda a, b: a & b,
        "a alone tells something: where a is 1, the label is always 1.": lambda a, b: a | b,
        "the label never varies: H(Y) = 0, and there is nothing to tell.": lambda a, b: a * 0,
        "labels are 0 or 1.": lambda a, b: a + b,
        "a and b are whole arrays of votes, and `if` takes one: write it with array operations.": lambda a, b: (
            1 if a != b else 0
        ),
    },
)
def in_nobody(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Labels [row], 0 or 1, of rows in which the members vote a [row] and b [row]."""
    return a ^ b


@exercise(
    minutes=5,
    difficulty=2,
    importance=4,
    cases=lambda: [(129, 8, 0.1), (61, 2, 0.1), (240, 4, 0.5)],
    axes="of rows",
    right="129 members, 8 labels and 0.1 bits need 420,138 rows; the paper has 2000 a task.",
    hints=(
        "Set the right-hand side of the formula equal to the error that you allow, and solve it for N.",
        "N = (K − 1) |L|² / (4 · error · ln 2).",
        "np.log is the natural logarithm: (labels - 1) * members**2 divided by 4 * error * np.log(2).",
    ),
    mistakes={
        "that allows the error in nats: a bit is ln 2 = 0.69 nats.": lambda m, k, e: (k - 1) * m**2 / (4 * e),
        "K labels cost K − 1, not K: over all rows there is an error too, and it is subtracted.": lambda m, k, e: (
            k * m**2 / (4 * e * np.log(2))
        ),
        "the error grows with |L|², not |L|: every pair of members has a correlation.": lambda m, k, e: (
            (k - 1) * m / (4 * e * np.log(2))
        ),
        "N is the number of all rows, not of the rows of one label.": lambda m, k, e: (
            (k - 1) * m**2 / (4 * e * np.log(2)) / k
        ),
        "leave N as it is, not rounded up.": lambda m, k, e: np.ceil((k - 1) * m**2 / (4 * e * np.log(2))),
        "the error that is allowed is missing: half of it needs twice the rows.": lambda m, k, e: (
            (k - 1) * m**2 / (4 * np.log(2))
        ),
        "there is a 4 in the denominator.": lambda m, k, e: (k - 1) * m**2 / (e * np.log(2)),
    },
)
def rows_needed(members: int, labels: int, error: float) -> float:
    """Rows N at which the plug-in diversity of so many members and labels is off by `error` bits."""
    return (labels - 1) * members**2 / (4 * error * np.log(2))


def _counts(letters: int) -> np.ndarray:
    from math import comb

    return np.array([comb(letters, r) for r in range(letters + 1)]) / 2**letters


def _bits(shares: np.ndarray, red: np.ndarray) -> float:
    table = np.stack([shares * red, shares * (1 - red)], axis=1)
    return entropy(table.sum(1)) + entropy(table.sum(0)) - entropy(table)


def _share_of_reds(letters: int) -> np.ndarray:
    return np.arange(letters + 1) / letters


@exercise(
    minutes=10,
    difficulty=3,
    importance=5,
    cases=lambda: [(3,), (1,), (2,), (6,)],
    axes="in bits",
    right="three letters: 0.311 bits. The members' number is to be held against this one, not against 0.",
    hints=(
        "Make the table [count, answer] of probabilities and use mutual_information. With three letters it is 4 × 2.",
        "A count of r reds among n letters has the probability comb(n, r) / 2ⁿ, and then the answer is red with r/n.",
        "shares = np.array([comb(letters, r) for r in range(letters + 1)]) / 2**letters; the columns of the table are "
        "shares · r/n and shares · (1 − r/n).",
    ),
    mistakes={
        "that is what stays unknown, H(Y | count). What is told is 1 bit less that.": lambda n: (
            1 - _bits(_counts(n), _share_of_reds(n))
        ),
        "that is how much the count varies, H(count), not what it tells about the answer.": lambda n: entropy(
            _counts(n)
        ),
        "that is in nats.": lambda n: np.log(2) * _bits(_counts(n), _share_of_reds(n)),
        "counts are not equally frequent: of three letters, 1/8, 3/8, 3/8, 1/8.": lambda n: _bits(
            np.full(n + 1, 1 / (n + 1)), _share_of_reds(n)
        ),
        "only the rows with all letters of one color were counted; other counts tell something, too.": lambda n: (
            2 / 2**n
        ),
        "where all are red the answer is red: the count does tell something.": lambda n: 0.0,
    },
)
def told_by_count(letters: int) -> float:
    """Bits about a letter's color that the number of reds tells, each of `letters` letters red by a fair coin."""
    from math import comb

    reds = np.arange(letters + 1)
    shares = np.array([comb(letters, r) for r in reds]) / 2**letters
    table = np.stack([shares * reds / letters, shares * (1 - reds / letters)], axis=1)
    return entropy(table.sum(1)) + entropy(table.sum(0)) - entropy(table)


def _scored() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [14, 9])
    return [(rng.normal(size=23) + 0.7 * labels, labels), (np.round(rng.normal(size=23) + labels), labels)]


@exercise(
    minutes=8,
    difficulty=3,
    importance=4,
    cases=_scored,
    right="the chance that a row of label 1 scores higher than one of label 0; ties count half.",
    hints=(
        "Compare every score of a row with label 1 with every score of a row with label 0.",
        "scores[labels == 1][:, None] > scores[labels == 0] is True or False, [row of label 1, row of label 0].",
        "The mean of (ones > zeros), plus half of the mean of (ones == zeros).",
    ),
    mistakes={
        "ties should count half.": lambda s, y: (s[y == 1][:, None] > s[y == 0]).mean(),
        "ties should count half, not whole.": lambda s, y: (s[y == 1][:, None] >= s[y == 0]).mean(),
        "that is turned round: rows of label 1 should score higher.": lambda s, y: (
            (s[y == 0][:, None] > s[y == 1]).mean() + (s[y == 0][:, None] == s[y == 1]).mean() / 2
        ),
        "that is the accuracy with a threshold of 0. An AUC needs no threshold.": lambda s, y: ((s > 0) == y).mean(),
        "that is a difference of means. Asked is how often one is above the other.": lambda s, y: (
            s[y == 1].mean() - s[y == 0].mean()
        ),
        "that is a number of pairs. Divide by how many there are.": lambda s, y: (
            (s[y == 1][:, None] > s[y == 0]).sum() + (s[y == 1][:, None] == s[y == 0]).sum() / 2
        ),
    },
)
def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The chance that a row of label 1 has a higher score than one of label 0; a tie counts half."""
    ones, zeros = scores[labels == 1][:, None], scores[labels == 0]
    return (ones > zeros).mean() + (ones == zeros).mean() / 2

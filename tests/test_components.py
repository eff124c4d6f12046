"""Components: labels and selection."""

import pytest

from layerdiv_tl import Component, InputError
from layerdiv_tl.components import positions

ALL = [
    Component("embed"),
    Component("pos_embed"),
    Component("attn", 0),
    Component("attn", 3, repeat=2),
    Component("mlp", 11),
    Component("head", 3, 5),
    Component("head", 3, 5, 1),
    Component("neuron", 3, 120),
    Component("attn_bias", 2),
    Component("mlp_bias", 2),
    Component("constant"),
    Component("rounding"),
    Component("member", index=7),
]


@pytest.mark.parametrize("component", ALL, ids=str)
def test_a_label_names_its_component(component):
    """parse(label) is the inverse of label."""
    assert Component.parse(component.label) == component


def test_labels_are_those_of_the_design():
    assert [c.label for c in ALL] == [
        "embed",
        "pos_embed",
        "L0.attn",
        "L3@2.attn",
        "L11.mlp",
        "L3.H5",
        "L3@1.H5",
        "L3.N120",
        "L2.attn_bias",
        "L2.mlp_bias",
        "constant",
        "rounding",
        "M7",
    ]


@pytest.mark.parametrize("label", ["", "attention", "L3", "L3.", "L3.H", "3.attn", "L3.H5.x", "L3@.attn"])
def test_what_is_not_a_label_is_refused(label):
    with pytest.raises(InputError, match="label"):
        Component.parse(label)


def test_conditions_are_joined_by_and():
    assert positions(ALL, kind=["attn", "mlp"], layer=range(2, 12)) == [3, 4]
    assert positions(ALL, module="attention", repeat=[1, 2]) == [3, 6]
    assert positions(ALL, label="L3.H5") == [5]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"kind": "attention"}, "kind 'attention'"),
        ({"label": "L9.attn"}, "label 'L9.attn'"),
        ({"layer": 99}, "layer=99"),
        ({"kind": []}, "kind="),
    ],
)
def test_a_selection_of_nothing_is_refused(condition, message):
    with pytest.raises(InputError, match=message):
        positions(ALL, **condition)

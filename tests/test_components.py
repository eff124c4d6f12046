"""Components: labels and selection."""

import pytest

import layerdiv_tl as ld
from layerdiv_tl import Component, InputError
from layerdiv_tl.components import positions

LABELS = {
    "embed": Component("embed"),
    "pos_embed": Component("pos_embed"),
    "L0.attn": Component("attn", 0),
    "L3@2.attn": Component("attn", 3, repeat=2),
    "L11.mlp": Component("mlp", 11),
    "L3.H5": Component("head", 3, 5),
    "L3@1.H5": Component("head", 3, 5, 1),
    "L3.N120": Component("neuron", 3, 120),
    "L2.attn_bias": Component("attn_bias", 2),
    "L2.mlp_bias": Component("mlp_bias", 2),
    "constant": Component("constant"),
    "rounding": Component("rounding"),
    "M7": Component("member", index=7),
}
ALL = list(LABELS.values())


def test_a_label_names_its_component():
    """parse(label) is the inverse of label."""
    for label, component in LABELS.items():
        assert component.label == label
        assert Component.parse(label) == component


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
        ({"layer": 99}, r"layer=99.* of layers \d+ to \d+"),
        ({"kind": []}, "kind="),
    ],
)
def test_a_selection_of_nothing_is_refused(condition, message):
    with pytest.raises(InputError, match=message):
        positions(ALL, **condition)


@pytest.mark.parametrize("kind", ["heads", "head"])
def test_a_kind_that_is_not_here_is_answered_with_those_that_are(kind):
    here = [Component("embed"), Component("attn", 0), Component("mlp", 1)]
    with pytest.raises(InputError, match="embed, attn, mlp[ .]"):
        positions(here, kind=kind)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("L1H1", "L1.H1"),
        ("L0N5", "L0.N5"),
        ("1_attn_out", "L1.attn"),
        ("blocks.1.attn", "L1.attn"),
        ("blocks.0.hook_mlp_out", "L0.mlp"),
        ("blocks.0.mlp.hook_out", "L0.mlp"),
        ("hook_embed", "embed"),
    ],
)
def test_names_of_transformer_lens_are_taken_wherever_labels_are(name, label):
    """Parsed, selected, grouped, ablated and looked up like our own labels; a group may be called like one."""
    assert Component.parse(name).label == label
    unit = "neuron" if ".N" in label else "head" if ".H" in label else "sublayer"
    c = ld.contributions("zoo/d2", [[1, 2, 3], [4, 5, 6]], [7, 8], unit=unit)
    assert [x.label for x in c.select(label=name).components] == [label]
    if unit != "neuron":
        assert "group:L9H9" in [
            x.label for x in ld.contributions("zoo/d2", [[1, 2]], [7, 8], unit=ld.groups({"L9H9": [name]})).components
        ]
    if unit != "neuron" and label != "embed":
        e = ld.effects("zoo/d2", [[1, 2, 3], [4, 5, 6]], [7, 8], [0, 1], unit=unit, components=[name])
        assert e.names == (label,)
        assert e.compensation(name).equals(e.compensation(label))


def test_every_frame_with_a_row_for_each_component_says_its_module():
    """`component kind module layer index repeat`, in this order, whatever made the frame."""
    prompts = [[1 + i, 1 + (3 * i) % 15, 5, 1 + i // 2] for i in range(8)]
    c = ld.contributions("zoo/d2", prompts, [7, 8])
    d = ld.decompose(c, [0, 1] * 4)
    e = ld.effects("zoo/d2", prompts, [7, 8], [0, 1] * 4)
    frames = [c.frame(), d.by_component(), d.by_component(full=True), e.frame(), e.compensation("L0.mlp")]
    frames += [ld.depth.residual_norms("zoo/d2", prompts).frame(), ld.depth.skip("zoo/d2", prompts).frame()]
    frames += [ld.compare(c, c).frame(), ld.profile("zoo/d2", prompts[0]).by_component()]
    for frame in frames:
        names = [x for x in frame if x in ("component", "kind", "module", "layer", "index", "repeat")]
        assert names == ["component", "kind", "module", "layer", "index", "repeat"]
        own = frame[~frame["component"].isin(["norm"])]
        assert own["module"].tolist() == [Component.parse(x).module for x in own["component"]]


def test_a_missing_component_is_answered_with_what_its_layer_has():
    c = ld.contributions("zoo/d4", [[1, 2, 3]], [3, 4], unit="head")
    for label, instead in {
        "L2.attn": "layer 2 has L2.H0, L2.H1, L2.mlp",
        "blocks.2.attn.hook_z": "layer 2 has",
        "L30.H1": "layers here are 0 to 3",
        "L2": "layer 2 has L2.H0, L2.H1, L2.mlp",
        "head": "choose among embed, L0.H0",
    }.items():
        with pytest.raises(ld.InputError, match=instead):
            c[label]
    assert c._ipython_key_completions_()[:2] == ["embed", "L0.H0"]

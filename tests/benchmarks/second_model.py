"""Repeat the README's findings on another model: is the first of the list a counterweight, and which heads can go?

    python tests/benchmarks/second_model.py [MODEL …]

MODEL is anything `load_model` takes; by default SmolLM2-135M-Instruct. Rows that choose and rows that measure are
disjoint. Prints, per task, the first and the largest components with their bias, accuracy alone and the cost of both
ablations; and the accuracy without most heads of the later half of the layers.
"""

import sys

import numpy as np

import layerdiv_tl as ld

TASKS = ("sample/sentiment", "sample/topic")
COLUMNS = ["logit_difference", "bias", "accuracy"]
GONE = 0.71  # of the heads of the later half


def roles(model, chosen, others):
    """The three components with the largest logit difference and the two with the largest centered diversity."""
    d = ld.decompose(ld.contributions(model, chosen.prompts, chosen.option_ids), chosen.labels).centered
    frame = d.by_component().set_index("component")
    frame["share"] = frame["diversity"] / frame["diversity"].sum()
    written = frame.drop(index=["embed", "constant"], errors="ignore")
    first, large = (written[name].nlargest(count).index for name, count in (("logit_difference", 3), ("diversity", 2)))
    labels = list(dict.fromkeys([*first, *large]))
    table = frame.loc[labels, [*COLUMNS, "share"]]
    for how in ("mean", "zero"):
        effects = ld.effects(model, others, components=labels, ablation=how).frame().set_index("component")
        table[f"{how}, nats"] = effects["cost"]
    print(f"zero baseline: bias {d.zero_bias:.3f}; accuracy by guessing {1 / d.values.shape[2]:.2f}")
    print(table.round(3).to_string())


def heads_that_can_go(model, chosen, others):
    """Accuracy on other rows without the heads of small mean logit difference, and without random ones."""
    c = ld.contributions(model, chosen.prompts, chosen.option_ids, unit="head")
    frame = ld.decompose(c, chosen.labels).by_component().set_index("component")
    heads = frame[(frame["kind"] == "head") & (frame["layer"] >= (frame["layer"].max() + 1) // 2)]
    count, rng = round(GONE * len(heads)), np.random.default_rng(0)
    groups = {"smallest |logit difference|": heads["logit_difference"].abs().nsmallest(count).index.tolist()}
    groups |= {f"random {i}": rng.choice(heads.index, count, replace=False).tolist() for i in range(3)}
    few = list(heads.index[:1])
    effects = ld.effects(model, others, unit="head", components=few, groups=groups).frame().set_index("component")
    whole = ld.effects(model, others, unit="head", components=few).accuracy
    left = {name: f"{whole - effects.loc[name, 'accuracy_lost']:.2f}" for name in groups}
    print(f"{count} of the {len(heads)} heads of the later layers gone: accuracy {whole:.2f} becomes {left}")


def main():
    for name in sys.argv[1:] or [None]:
        model = ld.load_model() if name is None else ld.load_model(name)
        for task in TASKS:
            rows = ld.task(task).resolve(model)
            half = len(rows.prompts) // 2
            chosen, others = rows.select(range(half)), rows.select(range(half, 2 * half))
            print(f"\n{model.name} on {task}: {half} rows chose, {half} others were ablated")
            roles(model, chosen, others)
            heads_that_can_go(model, chosen, others)


if __name__ == "__main__":
    main()

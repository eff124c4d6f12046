"""`layerdiv profile`: its numbers are the profile's, the text comes from anywhere, the page is the explorer."""

import argparse
import io
import json
import sys

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.cli import main
from layerdiv_tl.cli.arguments import given_text
from layerdiv_tl.views.token_views import hardest_tokens, profile_and_explorer, profile_summary
from tests.conftest import llama
from tests.oracles.browser import save_hostile_model

IDS = [5, 1, 4, 1, 5, 9, 2, 6, 7, 8, 12, 13]


@pytest.fixture(scope="module")
def model():
    return ld.load_model(llama())


@pytest.fixture(scope="module")
def profile(model):
    return ld.profile(model, IDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_hostile_model(tmp_path_factory.mktemp("tiny"))


def test_the_summary_is_the_frame_s(profile):
    """Means over tokens and components of the tidy frame; Theorem 1 to rounding."""
    found, frame = profile_summary(profile), profile.frame()
    said = frame[np.isfinite(frame.loss)]
    for name in ("bias", "diversity", "net"):
        for part in ("", "_centered", "_shift"):
            assert found[name + part] == pytest.approx(said[name + part].mean(), rel=1e-9)
    assert found["loss"] == pytest.approx(said.groupby("position").loss.first().mean())
    assert found["shift_share"] == pytest.approx(said.diversity_shift.sum() / said.diversity.sum())
    assert found["theorem_gap"] < 1e-6 * found["bias"]
    assert (found["tokens"], found["components"]) == (12, 7)
    assert found["identity_gap"] == profile.identity_gap < 1e-5


def test_the_hardest_tokens_are_the_frame_s(profile):
    """Largest losses first; components in the order of what they add to the right token beyond their mean."""
    frame = profile.frame()
    losses = frame.groupby("position").loss.first().dropna().sort_values(ascending=False)
    found = hardest_tokens(profile, count=4, k=3)
    shown = list(dict.fromkeys([*losses.index[:4], losses.index.max()]))  # and the last one
    assert [row["position"] for row in found] == shown
    assert [row["loss"] for row in found] == pytest.approx(losses[shown].tolist())
    for row in found:
        assert (row["token"], row["next_token"]) == profile.tokens[row["position"] :][:2]
        here = frame[frame.position == row["position"]]
        assert row["loss"] == profile.loss[row["position"]]
        beyond = here.target_logit.to_numpy() - profile.means[row["position"]]
        order = np.argsort(-beyond)
        labels = here.component.to_numpy()
        assert [label for label, _ in row["raised"]] == [labels[i] for i in order[:3] if beyond[i] > 0]
        assert [label for label, _ in row["lowered"]] == [labels[i] for i in order[::-1][:3] if beyond[i] < 0]


@pytest.mark.parametrize(("count", "unit"), [(12, "sublayer"), (12, "neuron"), (100, "sublayer"), (100, "head")])
def test_a_long_text_has_all_its_numbers(model, count, unit):
    """The page shows no more than the model's context; the numbers are those of the whole text."""
    ids = [1 + i % 60 for i in range(count)]
    found, explorer = profile_and_explorer(model, ids, unit)
    np.testing.assert_array_equal(found.net, ld.profile(model, ids, unit).net)
    assert explorer.texts[0].sublayers.token_ids.tolist() == ids[: model.context]


@pytest.mark.full
def test_the_command_writes_the_page(folder, tmp_path, capsys):
    """JSON on stdout with the profile's numbers, progress on stderr, one file."""
    out = tmp_path / "new" / "page.html"
    text = "w5 w1 w4 </script> w5 <img w9 onerror=alert(1)> w2"
    assert main(["profile", "--model", folder, "--json", "--out", str(out), text]) == 0
    told = capsys.readouterr()
    found, p = json.loads(told.out), ld.profile(folder, text)
    assert found["token_texts"] == list(p.tokens) == text.split()
    assert found["losses"][:-1] == pytest.approx(p.loss[:-1].tolist())
    assert found["losses"][-1] is None
    assert found["net"] == pytest.approx(profile_summary(p)["net"])
    assert [row["component"] for row in found["by_component"]] == [c.label for c in p.components]
    assert found["by_component"][2]["bias"] == pytest.approx(p.by_component().bias[2])
    assert found["hardest"][0]["loss"] == pytest.approx(np.nanmax(p.loss))
    assert "Decomposing" in told.err
    assert [f.name for f in out.parent.iterdir()] == ["page.html"]
    page = out.read_text(encoding="utf-8")
    assert len(page) == len(ld.explore(ld.load_model(folder), text).html())
    assert 'id="explorer"' in page
    assert page.count("</script") == page.count("<script")
    assert "<img" not in page


@pytest.mark.full
def test_the_command_prints_for_people(folder, tmp_path, capsys):
    assert (
        main(["profile", "--model", folder, "--unit", "head", "--out", str(tmp_path / "p.html"), "w5 w1 <img w4"]) == 0
    )
    told = capsys.readouterr().out
    assert "4 tokens, 16 components, mean loss" in told
    assert "<img" in told
    assert told.splitlines()[-1] == f"Open {tmp_path / 'p.html'} in a browser."


@pytest.mark.full
def test_the_text_comes_from_anywhere(folder, tmp_path, capsys, monkeypatch):
    """As an argument, from a file, and from the standard input it is the same text."""
    losses = []
    (tmp_path / "text").write_text("w5 w1 w4", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w5 w1 w4\n")))
    for given in (["w5 w1 w4"], ["--file", str(tmp_path / "text")], ["-"]):
        assert main(["profile", "--model", folder, "--json", "--out", str(tmp_path / "p.html"), *given]) == 0
        losses.append(json.loads(capsys.readouterr().out)["losses"])
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.full
def test_failures_are_a_sentence_and_1(folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    page = str(tmp_path / "p.html")
    monkeypatch.setattr("layerdiv_tl.views.explorer.measure.LONGEST", 3)
    for arguments, sentence in (
        (["--file", str(tmp_path / "none")], "cannot be read"),
        (["--file", str(tmp_path / "latin")], "is not UTF-8"),
        (["a\udcff"], "is not UTF-8"),
        (["  "], "the text is empty"),
        (["w1"], "no next one to predict"),
        (["w1 w2 w3 w4"], "at most 3"),
        (["w1 w2", "--out", str(tmp_path)], "names no file"),
        (["w1 w2", "--out", ""], "names no file"),
        (["w1 w2", "--out", str(tmp_path / "latin" / "p.html")], "cannot be made"),
        (["w1 w2", "--model", str(tmp_path / "none")], "there is no folder"),
    ):
        assert main(["profile", "--model", folder, "--out", page, *arguments]) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert sentence in told.err.splitlines()[-1]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["latin"]


def test_bad_usage_is_2(capsys):
    for arguments in ([], ["a", "--file", "b"], ["a", "--unit", "layer"]):
        with pytest.raises(SystemExit) as stopped:
            main(["profile", *arguments])
        assert stopped.value.code == 2
    capsys.readouterr()


@pytest.mark.parametrize(("written", "read"), [("a b\n", "a b"), ("a b\r\n", "a b"), ("a\n\n", "a\n"), ("a b", "a b")])
def test_the_end_of_the_last_line_is_no_text(written, read, tmp_path, monkeypatch):
    """Of a file and of the standard input; what stands on the command line is taken as it is."""
    (tmp_path / "text").write_bytes(written.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written.encode())))
    assert given_text(argparse.Namespace(file=None, text="-")) == read
    expected = read.replace("\r\n", "\n")
    assert given_text(argparse.Namespace(file=str(tmp_path / "text"), text=None)) == expected
    assert given_text(argparse.Namespace(file=None, text=written)) == written

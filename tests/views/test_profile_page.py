"""The page of one text: its numbers are the profile's, it works offline, and the command line writes it."""

import dataclasses
import io
import json
import re
import sys

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.cli import main
from layerdiv_tl.model.attention import attention_patterns
from layerdiv_tl.views import style
from layerdiv_tl.views.figures.loss import loss_curve
from layerdiv_tl.views.html import circuitsvis
from layerdiv_tl.views.profile_numbers import hardest_tokens, largest_heads, summary
from layerdiv_tl.views.profile_page import profile_page
from tests.conftest import llama
from tests.oracles.tokenizers import word_tokenizer

IDS = [5, 1, 4, 1, 5, 9, 2, 6, 7, 8, 12, 13]
WORDS = [f"w{i}" for i in range(58)] + ["</script>", "<img", "onerror=alert(1)>"]


@pytest.fixture(scope="module")
def model():
    return ld.load_model(llama())


@pytest.fixture(scope="module")
def profile(model):
    return ld.profile(model, IDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model on disk whose words include pieces of HTML."""
    place = tmp_path_factory.mktemp("tiny")
    word_tokenizer(WORDS).save_pretrained(place)
    llama().save_pretrained(place)
    return str(place)


def test_the_summary_is_the_frame_s(profile):
    """Means over tokens and components of the tidy frame; Theorem 1 to rounding."""
    found, frame = summary(profile), profile.frame()
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
    assert [row["position"] for row in found] == [place + 1 for place in losses.index[:4]]
    assert [row["loss"] for row in found] == pytest.approx(losses.iloc[:4].tolist())
    for row in found:
        assert row["token"] == profile.tokens[row["position"]]
        here = frame[frame.position == row["position"] - 1]
        beyond = here.target_logit.to_numpy() - profile.means[row["position"] - 1]
        order = np.argsort(-beyond)
        labels = here.component.to_numpy()
        assert [label for label, _ in row["raised"]] == [labels[i] for i in order[:3] if beyond[i] > 0]
        assert [label for label, _ in row["lowered"]] == [labels[i] for i in order[::-1][:3] if beyond[i] < 0]


def test_the_heads_shown_have_the_largest_net(profile, model):
    """Also of a profile that was not cut into heads."""
    frame = ld.profile(model, IDS, "head").frame(kind="head")
    size = frame.assign(size=frame.net_centered.abs()).groupby("component")["size"].mean()
    found = largest_heads(profile, model, count=3)
    assert {c.label for c in found} == set(size.nlargest(3).index)
    assert largest_heads(ld.profile(model, IDS, "head"), model, 3) == found


def test_the_loss_curve_shows_the_losses(profile):
    """A bar at the token that was to be said; a line where a blind guess lies."""
    figure = loss_curve(profile)
    bars = figure.data[0]
    assert list(bars.x) == list(range(1, 12))
    np.testing.assert_allclose(bars.y, profile.loss[:11])
    assert figure.layout.shapes[0].y0 == pytest.approx(np.log(61))
    assert bars.hovertext[3].startswith("<b>token␣5</b> at 4")


def test_the_page_says_its_numbers(profile, model):
    page, s = profile_page(profile, model).html(), summary(profile)
    assert f"{s['loss']:.3f} nats" in page
    assert f"{s['shift_share']:.1%} of raw diversity" in page
    for name in ("net", "bias", "diversity"):
        assert style.number(s[name]) in page
        assert style.number(s[f"{name}_centered"]) in page
    assert "architecture LlamaForCausalLM" in page


def test_what_a_page_cannot_show_is_refused(model):
    for ids, sentence in (
        ([1], "no next one to predict"),
        ([IDS, IDS], "shows one text"),
        ([1] * 1001, "at most 1000"),
    ):
        with pytest.raises(ld.InputError, match=sentence):
            profile_page(ld.profile(model, ids), model)
    with pytest.raises(ld.InputError, match="a whole profile of the squared error"):
        profile_page(ld.profile(model, IDS, loss="cross_entropy"), model)
    with pytest.raises(ld.InputError, match="a whole profile"):
        profile_page(ld.profile(model, IDS).centered, model)


def test_a_model_without_heads_to_see_has_a_page(monkeypatch, profile, model):
    """The page says why, and has the rest."""

    def refuse(*arguments):
        raise ld.InputError("this one hides them.")

    monkeypatch.setattr("layerdiv_tl.views.profile_page.attention_patterns", refuse)
    page = profile_page(profile, model).html()
    assert "There are none to show: this one hides them." in page
    assert "The hardest tokens" in page


@pytest.mark.parametrize("unit", ["head", "neuron"])
def test_many_components_have_a_page(model, unit):
    """The maps of a finer cut are of the same page; attention does not depend on the cut."""
    profile = ld.profile(model, IDS, unit)
    page = profile_page(profile, model).html()
    labels = [c.label for c in largest_heads(profile, model)]
    assert json.dumps(labels) in page
    assert len(page) < 12e6


def test_long_maps_keep_their_numbers_only(model, monkeypatch):
    """Beyond the budget hovers are short, and the page stays small."""
    profile = ld.profile(model, IDS * 5)
    full = len(profile_page(profile, model).html())
    monkeypatch.setattr("layerdiv_tl.views.profile_page._HOVERS", 100)
    assert len(profile_page(profile, model).html()) < full - 100_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [900, 1600])
def test_the_page_in_a_browser(browser, folder, tmp_path, width, scheme):
    """Nothing is asked for or complained about, nothing sticks out; buttons exchange maps; tokens can be read."""
    model = ld.load_model(folder)
    profile = ld.profile(model, "w5 w1 w4 </script> w5 <img w9 onerror=alert(1)> w2")
    path = profile_page(profile, model).write(tmp_path / "page.html")
    with browser.open(path, width, scheme) as opened:
        opened.scroll()
        opened.page.wait_for_selector(".ld-narrow canvas")
        opened.page.wait_for_selector(".chart .main-svg")
        assert opened.wider_than_window() <= 0
        visible = opened.page.locator(".chart:visible")
        assert visible.count() == 2
        opened.page.get_by_role("button", name="bias, raw").click()
        opened.page.wait_for_selector("text=Bias of every component at every token (raw)")
        assert visible.count() == 2
        card = opened.page.locator(".ld-circuits:visible").first
        ground, ink = (card.evaluate(f"box => getComputedStyle(box).{p}") for p in ("backgroundColor", "color"))
        assert ground == "rgb(255, 255, 255)"
        large = opened.page.locator(".ld-narrow canvas").last
        full = large.bounding_box()["width"]
        for narrow in (500, width):  # the map follows the window, down and up again
            opened.page.set_viewport_size({"width": narrow, "height": 900})
            opened.page.wait_for_timeout(300)
        assert full > 600
        assert large.bounding_box()["width"] == pytest.approx(full, abs=2)
        assert max(map(int, re.findall(r"\d+", ink))) < 100
        assert (opened.complaints, opened.requests) == ([], [])


def test_long_tokens_stay_inside(browser, profile, model, tmp_path):
    """Tokens of hundreds of letters, as vocabularies have them, make no page wider than its window."""
    look = profile.look
    long = dataclasses.replace(
        profile,
        tokens=tuple("-" * 300 if i % 2 else "\u6f22" * 90 for i in range(len(IDS))),
        look=lambda *arguments: look(*arguments).assign(token="=" * 300),
    )
    with browser.open(profile_page(long, model).write(tmp_path / "page.html"), 900) as opened:
        opened.scroll()
        opened.page.wait_for_selector(".ld-narrow canvas")
        assert opened.wider_than_window() <= 0
        for button in opened.page.locator(".ld-buttons button").all():
            button.click()
        opened.page.wait_for_timeout(300)
        assert opened.wider_than_window() <= 0
        width = opened.page.locator(".ld-narrow canvas").last.bounding_box()["width"]
        assert width > 300


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
    assert found["net"] == pytest.approx(summary(p)["net"])
    assert [row["component"] for row in found["by_component"]] == [c.label for c in p.components]
    assert found["by_component"][2]["bias"] == pytest.approx(p.by_component().bias[2])
    assert found["hardest"][0]["loss"] == pytest.approx(np.nanmax(p.loss))
    assert "Taking" in told.err
    assert [f.name for f in out.parent.iterdir()] == ["page.html"]
    page = out.read_text(encoding="utf-8").replace(circuitsvis(), "")
    assert page.count("</script") == page.count("<script")
    assert "<img" not in page


def test_the_command_prints_for_people(folder, tmp_path, capsys):
    assert (
        main(["profile", "--model", folder, "--unit", "head", "--out", str(tmp_path / "p.html"), "w5 w1 <img w4"]) == 0
    )
    told = capsys.readouterr().out
    assert "4 tokens, 16 components, mean loss" in told
    assert "<img" in told
    assert told.splitlines()[-1] == f"Open {tmp_path / 'p.html'} in a browser."


def test_the_text_comes_from_anywhere(folder, tmp_path, capsys, monkeypatch):
    """As an argument, from a file, and from the standard input it is the same text."""
    losses = []
    (tmp_path / "text").write_text("w5 w1 w4", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w5 w1 w4\n")))
    for given in (["w5 w1 w4"], ["--file", str(tmp_path / "text")], ["-"]):
        assert main(["profile", "--model", folder, "--json", "--out", str(tmp_path / "p.html"), *given]) == 0
        losses.append(json.loads(capsys.readouterr().out)["losses"])
    assert losses[0] == losses[1] == losses[2]


def test_failures_are_a_sentence_and_1(folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    page = str(tmp_path / "p.html")
    monkeypatch.setattr("layerdiv_tl.views.profile_page.LONGEST", 3)
    for arguments, sentence in (
        (["--file", str(tmp_path / "none")], "cannot be read"),
        (["--file", str(tmp_path / "latin")], "is not UTF-8"),
        (["a\udcff"], "is not UTF-8"),
        (["  "], "the text is empty"),
        (["w1"], "no next one to predict"),
        (["w1 w2 w3 w4"], "shows at most 3"),
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


def test_the_prefix_s_attention_is_that_of_the_text(model):
    """Long texts show the attention of their beginning, which is what the whole text has there."""
    whole = attention_patterns(model, IDS).patterns
    np.testing.assert_allclose(attention_patterns(model, IDS[:5]).patterns, whole[:, :5, :5], atol=1e-6)


@pytest.mark.parametrize(("written", "read"), [("a b\n", "a b"), ("a b\r\n", "a b"), ("a\n\n", "a\n"), ("a b", "a b")])
def test_the_end_of_the_last_line_is_no_text(written, read, tmp_path, monkeypatch):
    """Of a file and of the standard input; what stands on the command line is taken as it is."""
    import argparse

    from layerdiv_tl.cli import _text

    (tmp_path / "text").write_bytes(written.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written.encode())))
    assert _text(argparse.Namespace(file=None, text="-")) == read
    expected = read.replace("\r\n", "\n")
    assert _text(argparse.Namespace(file=str(tmp_path / "text"), text=None)) == expected
    assert _text(argparse.Namespace(file=None, text=written)) == written

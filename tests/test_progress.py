"""Progress of long calls in a log: plain lines, of the outermost call only."""

import itertools
import re

from layerdiv_tl import _progress


def test_a_log_gets_plain_lines_of_the_whole(monkeypatch, capsys):
    """Steps of a call inside count for the one around it where both count the same; no bars, no control characters."""
    clock = itertools.count(0, 4)
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(clock))
    with _progress.progress("a study", 10, "prompt", done=2):
        for number in _progress.counted(range(4), "a batch", 4, "prompt"):
            with _progress.progress("a text", 50, "token") as advance:
                advance(number)
        with _progress.progress("a batch", 4, "prompt") as advance:
            advance(4)
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert 0 < len(lines) < 5
    assert all(re.fullmatch(r"a study: prompt \d+ of 10, about \d+ s left", line) for line in lines)
    assert "\x1b" not in told.err
    assert "\r" not in told.err
    with _progress.progress("of unknown length", None, "token") as advance:
        advance(1)
    with _progress.quiet(), _progress.progress("inside a worker", 1, "row") as advance:
        advance(1)
    assert not capsys.readouterr().err


def test_bars_of_hugging_face_are_not_drawn_into_a_log(capsys):
    """Afterwards they are as they were."""
    from transformers.utils import logging

    from layerdiv_tl.model.pretrained import without_progress_bars

    before = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    with without_progress_bars():
        assert not logging.is_progress_bar_enabled()
        for _ in logging.tqdm(range(3), desc="weights"):
            pass
    assert logging.is_progress_bar_enabled()
    assert not capsys.readouterr().err
    if not before:
        logging.disable_progress_bar()

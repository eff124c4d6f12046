"""One prompt, in whatever form it is given, is the same tokens; what could be read in two ways is refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers.processors import TemplateProcessing

import layerdiv_tl as ld
from layerdiv_tl.model.load import Model
from layerdiv_tl.model.prompts import Prompts, encode, with_mask
from tests.conftest import TEXTS, gpt2, llama
from tests.oracles.tokenizers import word_tokenizer

WORDS = ["w0", "<s>", "</s>", "<pad>", "[g]", "user", "assistant", "red", "blue", "green", "ball", "is", "a", "The"]
SIZE = 61


def words(front: tuple[str, ...] = ("<s>",), end: tuple[str, ...] = (), pad: str = "<pad>"):
    """A tokenizer of words that puts tokens in front of a text and behind it."""
    made = word_tokenizer(
        [*WORDS, *(f"x{i}" for i in range(SIZE - len(WORDS)))], bos_token="<s>", eos_token="</s>", pad_token=pad
    )
    special = [(word, WORDS.index(word)) for word in {*front, *end}]
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single=" ".join([*front, "$A", *end]), special_tokens=special
    )
    return made


def model(**settings: object):
    return ld.load_model(llama(), tokenizer=words(**settings))


def values(net: Model, prompts: object, **more: object) -> np.ndarray:
    return ld.contributions(net, prompts, [7, 9], **more).values


PROMPTS = ["The ball is red", "a ball", "blue green ball is a"]
FORMS = {
    "texts": lambda t, p: p,
    "lists": lambda t, p: [t(x)["input_ids"] for x in p],
    "arrays": lambda t, p: [np.array(t(x)["input_ids"]) for x in p],
    "output": lambda t, p: t(p),
    "padded output": lambda t, p: t(p, padding=True, return_tensors="pt"),
    "dict": lambda t, p: dict(t(p, padding=True, return_tensors="pt")),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_prompt_is_the_same_numbers(form, side):
    """Texts one by one are the second source; what a mask leaves out is no text."""
    net = model()
    net.tokenizer.padding_side = side
    one_by_one = np.concatenate([values(net, [text]) for text in PROMPTS])
    given = FORMS[form](net.tokenizer, PROMPTS)
    np.testing.assert_allclose(values(net, given), one_by_one, atol=1e-6)
    np.testing.assert_allclose(values(net, FORMS[form](net.tokenizer, PROMPTS[:1])), one_by_one[:1], atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_mask_says_what_is_padding_where_the_pad_token_is_text(stories, side):
    """The stories' pad token is their end of text, too: without a mask such rows are refused, wherever texts go."""
    stories.tokenizer.padding_side = side
    batch = stories.tokenizer(TEXTS, padding=True, return_tensors="pt")
    ids, mask, options = batch["input_ids"], batch["attention_mask"], [" the", " a"]
    want = ld.contributions(stories, TEXTS, options).values
    found = ld.contributions(stories, ids, options, attention_mask=mask).values
    np.testing.assert_allclose(found, want, atol=1e-6)
    np.testing.assert_allclose(ld.contributions(stories, batch, options).values, want, atol=1e-6)
    losses = [ld.profile(stories, *given).loss for given in ((TEXTS,), (batch,))]
    losses.append(ld.profile(stories, ids, attention_mask=mask).loss)
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-6)
    as_text = ld.contributions(stories, ids, options, attention_mask=torch.ones_like(mask)).token_ids
    assert (as_text == 2).any()
    for call in (
        lambda: ld.contributions(stories, ids, options),
        lambda: ld.profile(stories, ids),
        lambda: ld.explore(stories, ids),
        lambda: ld.depth.residual_norms(stories, ids),
        lambda: ld.source_tokens(stories, ids.tolist(), options),
    ):
        with pytest.raises(ld.InputError, match="attention_mask="):
            call()
    pd.testing.assert_frame_equal(*(ld.depth.residual_norms(stories, given).frame() for given in (TEXTS, batch)))
    stories.tokenizer.padding_side = "right"


def test_a_beginning_of_text_in_every_row_is_no_padding():
    """Where the pad token is the first token of every text, one of it in front of every row is the text's."""
    net = model(pad="<s>")
    assert encode(net, [[1, 7, 8], [1, 9, 7]]) == [(1, 7, 8), (1, 9, 7)]
    with pytest.raises(ld.InputError, match="attention_mask="):
        encode(net, [[1, 1, 8], [1, 9, 7]])


@pytest.mark.parametrize(
    ("mask", "about"),
    [
        ([[1, 1]], "shape"),
        ([[1, 1, 1], [1, 1, 1]], "shape"),
        ([[1, 0, 1]], "between"),
        ([[1, 1, 2]], "attention_mask must"),
        ([[0, 0, 0]], "prompt 0 is empty"),
        (7, "attention_mask=7"),
    ],
)
def test_masks_that_do_not_fit(mask, about):
    with pytest.raises(ld.InputError, match=about):
        ld.contributions(llama(), [[1, 2, 3]], [7, 9], attention_mask=mask)
    with pytest.raises(ld.InputError, match="attention_mask"):
        ld.contributions(model(), ["The ball"], [7, 9], attention_mask=[[1, 1]])
    twice = {"input_ids": [[1, 2]], "attention_mask": [[1, 1]]}
    with pytest.raises(ld.InputError, match="prompts="):
        ld.contributions(llama(), twice, [7, 9], attention_mask=[[1, 1]])


BESIDE = {
    "pixel_values": torch.zeros(1, 3, 4, 4),
    "input_features": [[0.5]],
    "position_ids": [[3, 4, 5]],
    "token_type_ids": [[0, 0, 1]],
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_a_pass_would_read_besides_its_tokens_is_refused(name):
    """Dropped, a picture changes the logits without a word; token types of 0 change them where the model takes any."""
    ids = {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1]]}
    with pytest.raises(ld.InputError, match=name):
        ld.top_tokens(llama(), ids | {name: BESIDE[name]})
    nothing = {"labels": [[1, 2, 3]], "length": [3], "token_type_ids": [[0, 0, 0]], "pixel_values": None}
    assert ld.top_tokens(llama(), ids | nothing).equals(ld.top_tokens(llama(), [1, 2, 3]))
    with pytest.raises(ld.InputError, match="token_type_ids"):
        ld.depth.residual_norms(gpt2(), ids | nothing)


TURNS = [{"role": "user", "content": "The ball is"}]


@pytest.mark.parametrize("text", ["[g] <s> The ball", "<s> The ball", "The ball"])
def test_what_a_tokenizer_puts_in_front_stands_there_once(text):
    """A text may begin with all of it, or with its end; what the tokenizer appends is left out."""
    net = model(front=("[g]", "<s>"), end=("</s>",))
    assert encode(net, [text]) == [(4, 1, 13, 10)]


BORDERS = [
    (["The capital of France is "], ["Paris", "Rome"]),
    (["The Ans"], ["wer", "k"]),
    (["Once upon a ti"], ["me", "ger"]),
]


@pytest.mark.full
@pytest.mark.parametrize(("prompts", "options"), BORDERS)
def test_an_option_that_begins_inside_a_token_is_refused_everywhere(smol, prompts, options):
    """Of one token or of several, as an option, a contrast, a target or a label's answer; with ids it is the user's."""
    assert len(smol.tokenizer(prompts[0] + options[0])["input_ids"]) == len(smol.tokenizer(prompts[0])["input_ids"])
    effects = {"labels": [0], "ablation": "zero", "components": ["L0.mlp"]}
    for call in (
        lambda: ld.contributions(smol, prompts, options),
        lambda: ld.contributions(smol, prompts, options=options),
        lambda: ld.logit_difference(smol, prompts, *options),
        lambda: ld.source_tokens(smol, prompts, options),
        lambda: ld.explore(smol, prompts[0], target=options[0]),
        lambda: ld.effects(smol, prompts, options, **effects),
        lambda: ld.depth.integrated_gradients(smol, prompts, answers=options[:1]),
    ):
        with pytest.raises(ld.InputError, match="inside a token"):
            call()
    ids = [smol.tokenizer(option)["input_ids"][0] for option in options]
    assert ld.contributions(smol, prompts, ids).values.shape[2] == 2


def test_options_continue_their_prompt(stories):
    """The tokens of prompt and option together, whatever the option is alone; read before the end it has no prompt."""
    t, prompt = stories.tokenizer, "Lily and Ben went to the park. They"
    for option in (" were", " saw", "'re"):
        whole, before = (t(x)["input_ids"] for x in (prompt + option, prompt))
        ids = ld.contributions(stories, [prompt], [option, " and"]).option_ids
        assert ids[0, 0].ravel()[: len(whole) - len(before)].tolist() == whole[len(before) :]


def test_a_conversation_that_the_tokenizer_rendered_is_its_ids():
    net = model()
    net.tokenizer.chat_template = "{% for m in messages %}<s> {{ m['content'] }}{% endfor %} <s> assistant"
    turns = [{"role": "user", "content": "The ball is"}]
    for many in (turns, [turns, turns]):
        assert set(encode(net, net.tokenizer.apply_chat_template(many))) == {(1, 13, 10, 11, 1, 6)}


PARTS = [{"role": "user", "content": [{"type": "text", "text": "The ball"}, {"type": "image"}]}]


@pytest.mark.parametrize("given", [TURNS, [TURNS], [PARTS], {"messages": TURNS}, [{"messages": TURNS}]])
def test_a_conversation_that_nobody_rendered_is_refused(given):
    """How a template is to be read, and with which settings, is the user's: nothing is read as Python's notation."""
    with pytest.raises(ld.InputError, match="apply_chat_template|list of texts"):
        ld.contributions(model(), given, [7, 9])


def test_prompts_are_read_once():
    """Rows that were read are not looked at again for padding."""
    net = model(pad="</s>")
    read = encode(net, with_mask([[1, 7, 2], [1, 7, 8]], [[1, 1, 1], [1, 1, 0]]))
    assert encode(net, read) is read
    assert isinstance(read, Prompts)
    assert read == [(1, 7, 2), (1, 7)]


def test_half_of_a_character_is_no_text(stories):
    """A lone surrogate, as bad decoding leaves it: in a prompt, an option, a row of a table."""
    for call in (
        lambda: ld.contributions(stories, ["a \ud800"], [7, 9]),
        lambda: ld.contributions(stories, ["a"], [" a", " \ud800"]),
        lambda: ld.profile(stories, "\udfff"),
    ):
        with pytest.raises(ld.InputError, match="lone surrogate"):
            call()

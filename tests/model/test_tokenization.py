"""What cannot be used is answered by one sentence that says what to do, and never by a number."""

import warnings

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import layerdiv_tl as ld
from layerdiv_tl.model.options import single_tokens
from layerdiv_tl.model.prompts import Prompts, token_texts
from tests.conftest import gpt2, llama
from tests.oracles.families import FAMILIES

GOOD = {"prompts": [[1, 2, 3]], "options": [7, 9]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": []}, "prompts"),
        ({"prompts": [[1], []]}, "prompt 1"),
        ({"prompts": [""]}, "prompt 0 is empty"),
        ({"prompts": ["text"]}, "tokenizer"),
        ({"prompts": [[1, 99]]}, "prompt 0 .* 99, .* 60"),
        ({"prompts": [[1, -1]]}, "-1"),
        ({"prompts": [[1, 2.5]]}, "2.5"),
        ({"prompts": [[1, True]]}, "True"),
        ({"prompts": [[1] * 65]}, "prompt 0 .* 65 .* 64"),
        ({"options": []}, "options"),
        ({"options": [[]]}, "options of prompt 0"),
        ({"options": [{7, 9}, 8]}, "options"),
        ({"options": None}, "options"),
        ({"options": "Yes"}, "options='Yes'"),
        ({"options": b"ab"}, "options="),
        ({"prompts": b"ab"}, "prompts=b'ab'"),
        ({"prompts": [b"ab"]}, "prompt 0=b'ab'"),
        ({"options": [[[7]], [[9]]]}, "options .* prompts"),
        ({"options": [[[7], [9.5]]]}, r"options of prompt 0 .* 9.5"),
        ({"options": [[[7], []]]}, "options of prompt 0.* empty"),
        ({"options": [[[7, 9], [7, 9]]]}, "same tokens"),
        ({"options": [[[7, 9], 61]]}, "options .* 61, .* 60"),
        ({"options": [[[7] * 70, [9]]]}, "prompt and its option .* 72 tokens"),
        ({"options": [7, 7]}, "same token"),
        ({"options": [7, 99]}, "options .* 99"),
        ({"options": [" Yes", " No"]}, "tokenizer"),
        ({"options": [" Yes", 7]}, "option ' Yes' .* tokenizer"),
        ({"options": [[1, 2], [3, 4]]}, "options .* prompts"),
        ({"prompts": [[1], [2]], "options": [[1, 2], [3]]}, "number of options"),
        ({"unit": "layer"}, "unit='layer'"),
        ({"position": "first"}, "position='first'"),
        ({"position": 3}, "position 3 .* prompt 0"),
        ({"position": -4}, "position -4"),
        ({"position": [0, 1]}, "position=.* 1 prompts"),
        ({"position": 1.0}, "position=1.0"),
        ({"unit": "neurons"}, "unit='neurons'"),
        ({"prompts": [[1, 2], "text"]}, "tokenizer"),
        ({"prompts": 7}, "prompts=7"),
        ({"prompts": [None]}, "prompt 0=None"),
        ({"prompts": [[[1, 2]]]}, r"prompt 0 .*\[1, 2\]"),
        ({"options": 7}, "options=7"),
        ({"options": [None, 7]}, "options .* None"),
        ({"options": [7.0, 8]}, "options .* 7.0"),
        ({"position": None}, "position=None"),
        ({"position": [True]}, "position="),
        ({"prompts": None}, "prompts"),
        ({"prompts": {"ids": [[1, 2]]}}, "prompts={'ids"),
        ({"prompts": torch.tensor(5)}, "prompts="),
        ({"options": {"Yes": 7}}, "options="),
    ],
)
def test_bad_arguments_of_contributions(change, message):
    with pytest.raises(ld.InputError, match=message):
        ld.contributions(llama(), **{**GOOD, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["", " the"], "option '' adds no tokens"),
        ([" the", " the"], "same token"),
        ([" elephant", " elephant"], "same tokens"),
        (["sat on", " the"], "'sat on' begins inside a token of prompt 0"),
    ],
)
def test_options_that_cannot_be_scored(stories, options, message):
    with pytest.raises(ld.InputError, match=message):
        ld.contributions(stories, ["The cat "], options)


@pytest.mark.full
def test_options_that_the_tokenizer_does_not_know():
    """They would be scored as the unknown token, whatever they say; and no message takes it for a single one."""
    for options in ([" purple", " red"], [" red purple", " red"]):
        rows = ld.Task("colors", ("A: red",), tuple(options), np.array([1]), ("",), "", "", "")
        for given in ({"prompts": ["A: red"], "options": options}, {"prompts": rows}):
            with pytest.raises(ld.InputError, match="purple.* does not know"):
                ld.contributions("zoo/d2", **given)
    assert ld.contributions("zoo/d2", ["A: red"], ["<unknown>", " red"]).values.shape == (1, 5, 2)
    with pytest.raises(ld.InputError, match="' red red' is the tokens"):
        single_tokens(ld.load_model("zoo/d2"), [[[67, 67], [68]]], Prompts([()]))


def test_where_options_must_be_single_tokens(stories):
    with pytest.raises(ld.InputError, match="option ' elephant' is the tokens"):
        single_tokens(stories, [" the", " elephant"], Prompts([()]))


def test_words_glued_to_the_prompt_give_a_warning(stories):
    """ "day" and "a" make "daya"; after a quotation mark, with the space, or as ids nothing is said."""
    with pytest.warns(UserWarning, match=r"write \[' a', ' s'\]") as seen:
        ld.contributions(stories, ["One day"], ["a", "s"])
    assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match=r"options \['a'\] follow"):
        ld.contributions(stories, ["One day"], ["a", " the"])
    with warnings.catch_warnings(action="error"):
        ld.contributions(stories, ['One "'], ["a", "s"])
        ld.contributions(stories, ["One day"], [" a", " the"])
        ld.contributions(stories, ["One day"], [300, 301])


@pytest.mark.parametrize("place", ["model.layers.1.mlp.down_proj.weight", "lm_head.weight", "model.norm.weight"])
def test_weights_that_are_nan(place):
    """NaN anywhere on the way to the logits gives a sentence that names its module, not NaN."""
    model = llama()
    model.get_parameter(place).data.fill_(float("nan"))
    with pytest.raises(ld.InputError, match=f"not finite, first in {place.removesuffix('.weight')} "):
        ld.contributions(model, **GOOD)


def test_a_window_that_meets_padding_in_float64():
    """Transformers gives NaN there: the sentence says what to do, and it helps."""
    model = FAMILIES["gemma2"]().double()
    prompts = [[*range(1, 31)], [1, 2, 3]]
    with pytest.raises(ld.InputError, match="batch_tokens=1"):
        ld.contributions(model, prompts, [5, 6])
    assert ld.contributions(model, prompts, [5, 6], batch_tokens=1).identity_gap < 1e-6


def test_a_base_model_is_answered_with_the_class_that_loads_it():
    with pytest.raises(ld.InputError, match=r"no unembedding.*AutoModelForCausalLM"):
        ld.load_model(llama().model)


def test_a_folder_without_tokenizer_takes_ids_only(tmp_path):
    llama().save_pretrained(tmp_path)
    model = ld.load_model(tmp_path)
    assert model.tokenizer is None
    assert ld.contributions(model, **GOOD).identity_gap < 1e-6
    with pytest.raises(ld.InputError, match="tokenizer"):
        ld.contributions(model, ["text"], [7, 9])


def test_models_that_are_no_sum_are_refused_with_the_reason():
    """BERT has a network of its own between its last norm and its unembedding."""
    from transformers import BertConfig, BertLMHeadModel

    small = BertConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    with pytest.raises(ld.InputError, match="decomposed|architecture"):
        ld.load_model(BertLMHeadModel(small))


def test_a_path_that_cannot_be_written(tmp_path):
    d = ld.decompose(np.zeros((1, 2, 2)), [0])
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(ld.InputError, match="written"):
            d.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_selection_that_leaves_nothing():
    c = ld.contributions(gpt2(), **GOOD)
    with pytest.raises(ld.InputError, match="layer=9"):
        c.select(kind="mlp", layer=9)


def test_a_part_of_a_character_is_shown_by_its_bytes(stories):
    """Of a byte-level vocabulary, with and without a whole character before them, and of SentencePiece's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {letter: number for number, letter in enumerate([*letters, "Ġæ"])}
    bytewise = Tokenizer(models.BPE(vocab=numbers, merges=[("Ġ", "æ")]))
    bytewise.pre_tokenizer, bytewise.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    model = ld.load_model(llama(vocab_size=300), tokenizer=PreTrainedTokenizerFast(tokenizer_object=bytewise))
    assert len(set(token_texts(model, range(len(numbers))))) == len(numbers)
    spelled = tuple(f"⟨{byte:02X}⟩" for byte in "🙂".encode())
    for each in (model, stories):
        ids = each.tokenizer("a🙂", add_special_tokens=False)["input_ids"]
        assert token_texts(each, ids)[-4:] == spelled
    assert token_texts(model, model.tokenizer("a 日")["input_ids"]) == ("a", " ⟨E6⟩", "⟨97⟩", "⟨A5⟩")


def word_pieces():
    """A tokenizer whose words are decoded with a blank between them, and their later pieces without."""
    pieces = {piece: number for number, piece in enumerate(["[UNK]", "ball", "##s", "s", "##ball", "blue"])}
    made = Tokenizer(models.WordPiece(vocab=pieces, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


@pytest.mark.parametrize("name", ["SentencePiece", "WordPiece"])
def test_two_tokens_never_look_alike(stories, name):
    """Decoded alone, "▁the" and "the" are one text, as are a byte and its letter, or a word and a later piece."""
    model = stories if name == "SentencePiece" else ld.load_model(llama(vocab_size=6), tokenizer=word_pieces())
    texts = token_texts(model, range(model.vocabulary))
    assert len(set(texts)) == model.vocabulary
    for number, text in enumerate(texts):
        if "⟨" not in text:  # it reads as the token
            assert single_tokens(model, [text], Prompts([(1,)]))[0].tolist() == [[number]]


def test_the_text_of_a_continuation_reads_as_its_tokens(stories):
    for prompt in ("Once upon a time", stories.tokenizer("One day, Lily")["input_ids"]):
        written = ld.continuation(stories, prompt, max_new_tokens=6)
        assert ld.continuation(stories, prompt, written.text[0]).continued == written.continued
        assert "".join(written.written) == written.text[0]

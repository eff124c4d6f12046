"""Options and prompts as a tokenizer sees them."""

import pandas as pd
import pytest

import layerdiv_tl as ld

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# As Qwen 3 does: an answer that was not thought about stands after an empty thought.
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# As Llama 2 and Mistral do: the answer follows in the same line.
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]{% elif m.role == 'assistant' %}"
    " {{ m.content }}</s>{% else %}{{ raise_exception('no system turn') }}{% endif %}{% endfor %}"
)


def own(options, template="{q} is", texts=("one", "two")):
    frame = pd.DataFrame({"q": list(texts), "label": [options[0]] * len(texts)})
    return ld.Task.from_frame(frame, template=template, options=options)


@pytest.fixture(scope="module")
def bpe():
    """A byte-level BPE: a space merges with the word after it, as in GPT-2, but not with a digit, as in Llama 3."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    words = "one is two yes no not never answer the = a yes no : yes no is no yes"
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([words] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(params=["bpe", "sentencepiece"])
def tokenizer(request):
    if request.param == "bpe":
        return request.getfixturevalue("bpe")
    return request.getfixturevalue("stories").tokenizer


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("options", "template"),
    [(["1", "2", "3"], "{q} is"), (["1", "2", "3"], "{q} ={answer}"), (["a", "b"], "{q}:\n")],
)
def test_the_prompt_and_an_option_are_tokenized_as_one_text(tokenizer, options, template):
    """A prompt's tokens followed by an option's are the tokens of the whole text, wherever its space went."""
    t = own(options, template)
    r = t.resolve(tokenizer)
    assert r.scored == ""
    for before, prompt in zip(t.prompts, r.prompts, strict=True):
        for option, rest, token in zip(t.options, r.options, r.option_ids, strict=True):
            assert prompt + rest == before + option
            assert ids(tokenizer, before + option) == [*ids(tokenizer, prompt), token]


def test_a_space_of_its_own_goes_to_the_prompt(bpe):
    t = own(["1", "2"]).resolve(bpe)
    assert t.prompts[0] == "one is "
    assert t.options == ("1", "2")
    words = own(["yes", "no"]).resolve(bpe)
    assert words.prompts[0] == "one is"
    assert words.options == (" yes", " no")


def test_long_options_are_sequences(bpe):
    for options in (["the answer 1", "the answer 2"], ["never", "is not", "12"]):
        t = own(options)
        r = t.resolve(bpe)
        assert (r.prompts, r.options, r.option_ids) == (t.prompts, t.options, ())
        assert "sequences" in r.scored == r.frame().attrs["scored"]


def test_resolved_ids_can_be_run(stories):
    """The ids are what `contributions` takes; a model stands for its tokenizer."""
    t = own(["a", "b"], texts=("Once upon a time", "One day")).resolve(stories)
    c = ld.contributions(stories, t.prompts, t.option_ids)
    assert c.option_ids.tolist() == [list(t.option_ids)] * 2


@pytest.mark.parametrize(
    ("template", "prompt", "options"),
    [
        (CHATML, "<|user|>\none is<|end|>\n<|assistant|>\n", ("yes", "no")),
        (INST, "<s>[INST] one is [/INST]", (" yes", " no")),
        (THINKING, "<|user|>\none is<|end|>\n<|assistant|>\n<think>\n\n</think>\n\n", ("yes", "no")),
    ],
)
def test_a_chat_ends_where_the_template_writes_the_answer(bpe, template, prompt, options):
    """Prompt and option are a beginning of the finished conversation that the template itself renders."""
    bpe.chat_template = template
    t = own(["yes", "no"]).as_chat(bpe)
    assert t.prompts[0] == prompt
    assert t.options == options
    turns = [{"role": "user", "content": "one is"}, {"role": "assistant", "content": "yes"}]
    assert bpe.apply_chat_template(turns, tokenize=False).startswith(prompt + options[0])


def test_a_system_turn_and_templates_that_refuse(bpe):
    bpe.chat_template = CHATML
    assert own(["yes", "no"]).as_chat(bpe, system="Be brief.").prompts[0].startswith("<|system|>\nBe brief.<|end|>")
    bpe.chat_template = INST
    with pytest.raises(ld.InputError, match="system="):
        own(["yes", "no"]).as_chat(bpe, system="Be brief.")
    bpe.chat_template = None
    with pytest.raises(ld.InputError, match="tokenizer"):
        own(["yes", "no"]).as_chat(bpe)


@pytest.mark.full
def test_the_papers_options_are_single_tokens_of_the_default_model(smol):
    from layerdiv_tl.tasks.specs import PACKAGED_TASKS
    from tests.tasks.test_paper import EIGHT_TASKS

    for name in EIGHT_TASKS:
        words = own(PACKAGED_TASKS[name].options)
        assert words.resolve(smol).options == words.options


def test_a_blank_that_a_text_ends_in_stays(tokenizer):
    t = own([" a", " the"], template="{q}", texts=("one ", "two")).resolve(tokenizer)
    assert t.prompts == ("one ", "two")


def test_an_option_beyond_the_models_vocabulary(bpe):
    """A tokenizer that is larger than the model: which option, and how large the vocabulary is."""
    from tests.conftest import llama

    model = ld.load_model(llama(vocab_size=61), tokenizer=bpe)
    with pytest.raises(ld.InputError, match="0 to 60"):
        own(["yes", "no"]).resolve(model)

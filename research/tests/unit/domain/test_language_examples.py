"""Training examples of the language model in either domain: right answers, the methods' questions, training."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import torch

from gateway.methods.counterfactual import TaskDescription
from gateway.methods.dillema import keyword_messages
from research.domain.language_domain import LanguageDomain
from research.domain.language_examples import KINDS, Kind, Wordings, example
from research.judges.language import is_right
from research.objects.language_domain import OBJECTS
from research.roads.language_domain import ROADS
from research.train import language
from research.train.language import LanguageLoss, build_model, build_tokenizer

Domain = LanguageDomain[Any]

pytestmark = pytest.mark.parametrize("domain", [OBJECTS, ROADS], ids=lambda domain: domain.name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_answer_is_right_and_examples_repeat(domain: Domain, kind: Kind) -> None:
    plain = Wordings(domain, noise=0)
    for seed in range(400):
        sample = example(kind, seed, plain)
        assert is_right(sample, sample.reply)
        assert not is_right(sample, sample.reply[:-1])
    assert example(kind, 7, plain) == example(kind, 7, plain)


def test_the_questions_are_the_methods_own(domain: Domain) -> None:
    sample = example("keywords", 3, Wordings(domain, noise=0))
    task = sample.messages[-1].content.splitlines()[0].removeprefix("Task: ")
    truths = [None, *sample.description.stated.values()]
    questions = [keyword_messages(TaskDescription(task), sample.description.text, truth) for truth in truths]
    assert sample.messages in questions


def test_reworded_captions_keep_what_they_state(domain: Domain) -> None:
    for seed in range(400):
        sample = example("keywords", seed, Wordings(domain, noise=0.5))
        position = 0
        for mention in sample.description.mentions:
            position = sample.description.text.index(mention.phrase, position)
        assert is_right(sample, sample.reply)
    plain, noisy = (example("rewrite", 3, Wordings(domain, noise=noise)).description.text for noise in (0, 0.5))
    assert plain != noisy


def test_a_step_of_training_asks_of_the_domain(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_TOKENIZER_EXAMPLES", 30)
    tokenizer = build_tokenizer(domain)
    model = build_model(tokenizer)
    loss = LanguageLoss(tokenizer, 4, domain)
    value = loss(model, 0)
    value.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(value)
    captions = tokenizer.batch_decode(loss._captions(Random(0), 20).ids, skip_special_tokens=True)
    assert sum("road" in text for text in captions) == (20 if domain is ROADS else 0)


def test_an_instruction_says_the_new_phrase_and_nothing_that_the_caption_lacks(domain: Domain) -> None:
    texts = set[str]()
    for seed in range(300):
        sample = example("instruct", seed, Wordings(domain, noise=0))
        for edit in json.loads(sample.reply)["edits"]:
            instruction = edit["instruction"]
            assert edit["to_phrase"] in instruction
            assert instruction[0].isupper()
            assert instruction.endswith(".")
            texts.add(instruction.replace(edit["to_phrase"], "…").replace(edit["from_phrase"], "…"))
    assert len(texts) > 15


def test_a_reply_without_the_new_phrase_in_its_instruction_is_wrong(domain: Domain) -> None:
    samples = (example("instruct", seed, Wordings(domain, noise=0)) for seed in range(300))
    sample = next(sample for sample in samples if sample.edits == 1 and "instruction" in sample.reply)
    edit = json.loads(sample.reply)["edits"][0]
    wrong = json.dumps({"edits": [{**edit, "instruction": "Keep it as it is."}]})
    assert is_right(sample, sample.reply)
    assert not is_right(sample, wrong)

"""How well the tiny language model answers, free-running, on scenes that it was not trained on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from tinyworld.language_examples import KINDS, Example, Wordings, example
from tinyworld.phrases import SLOTS, slot_of

_BATCH = 50


def evaluate(folder: Path, *, examples: int) -> dict[str, str]:
    """Right / asked (share, Wilson interval) by kind of question, for usual and withheld wordings, greedy decoding.

    A reply is right when it is valid JSON of the right shape and: keywords are exactly the phrases that may change,
    with factor and value; alternatives are distinct other values of the same place in the sentence; a rewritten caption
    is the expected one word for word.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results: dict[str, str] = {}
    for withheld in (False, True):
        wordings = Wordings("calibration", allow_withheld=True, withheld_wording=withheld, noise=0)
        for kind in KINDS:
            asked = [example(kind, seed, wordings) for seed in range(examples)]
            replies = generate(model, tokenizer, asked)
            right = sum(is_right(one, reply) for one, reply in zip(asked, replies, strict=True))
            results[f"{kind}, {'withheld' if withheld else 'usual'} wording"] = rate(right, len(asked))
    return results


@torch.inference_mode()
def generate(model: LlamaForCausalLM, tokenizer: AutoTokenizer, asked: list[Example]) -> list[str]:
    """Greedy replies, unconstrained."""
    replies: list[str] = []
    for start in range(0, len(asked), _BATCH):
        conversations = [[m.model_dump() for m in one.messages] for one in asked[start : start + _BATCH]]
        inputs = tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        written = model.generate(**inputs, max_new_tokens=192, do_sample=False)
        replies += tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return replies


def is_right(one: Example, reply: str) -> bool:
    """Whether a reply answers an example's question."""
    try:
        value = json.loads(reply)
    except json.JSONDecodeError:
        return False
    if one.kind != "alternatives":
        return bool(value == json.loads(one.reply))
    return _alternatives_fit(one, value)


def _alternatives_fit(one: Example, value: object) -> bool:
    if one.asked is None or not isinstance(value, dict) or list(value) != ["alternatives"]:
        return False
    found = [(a.get("phrase", ""), a.get("value", "")) for a in value["alternatives"] if isinstance(a, dict)]
    place = slot_of(one.asked.phrase, field=one.asked.field)
    wordings = SLOTS[place].wordings
    fits = all(v in wordings and phrase in wordings[v].all for phrase, v in found)
    values = [v for _, v in found]
    return fits and len(set(values)) == len(values) == min(3, len(wordings) - 1) and one.asked.value not in values


def rate(right: int, asked: int) -> str:
    """ "right / asked (share, 95 % Wilson interval)"."""
    z, share = 1.96, right / asked
    centre = (share + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z / (1 + z * z / asked) * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked))
    return f"{right} / {asked} ({share:.1%}, {max(0, centre - half):.1%} to {min(1, centre + half):.1%})"

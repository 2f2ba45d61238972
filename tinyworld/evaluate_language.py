"""How well the tiny language model answers, free-running, on scenes that it was not trained on."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import llguidance
import llguidance.hf
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from gateway.methods.dillema import DillemaParameters, alternative_schema, keyword_schema, rewrite_schema
from gateway.methods.lance import perturb_schema
from llm_service.decoding import Decoder, Row, Written
from llm_service.engines.transformers import JSON_STYLE
from shared.problems import InvalidInput
from tinyworld.captions import Withheld
from tinyworld.language_examples import KINDS, MOST_EDITS, Example, Kind, Wordings, example, perturbed, replaced
from tinyworld.phrases import SLOTS, slot_of
from tinyworld.tokenizer import END
from tinyworld.world import EDIT_FACTOR

_BATCH = 50
_WORDINGS: dict[Withheld, str] = {
    "nothing": "usual wording",
    "sentences": "withheld sentences and tasks",
    "phrases too": "withheld sentences, tasks and phrases",
}
_LONGEST: dict[Kind, int] = {"keywords": 256, "alternatives": 256, "rewrite": 256, "perturb": 512}  # tokens of a reply
_SCHEMAS: dict[Kind, dict[str, Any]] = {
    "keywords": keyword_schema(8),
    "alternatives": alternative_schema(3),
    "rewrite": rewrite_schema(),
    "perturb": perturb_schema(MOST_EDITS),
}
_TEMPERATURES: dict[Kind, float] = {
    "keywords": 0.0,
    "alternatives": DillemaParameters().temperature,
    "rewrite": 0.0,
    "perturb": 0.7,
}


def evaluate(folder: Path, *, examples: int) -> dict[str, str]:
    """Right / asked (share, Wilson interval) by kind of question, for usual and for withheld wordings.

    A reply is right when it is valid JSON of the right shape and: keywords are exactly the phrases that may change,
    with factor and value; alternatives are distinct other values of the same place in the sentence; a rewritten caption
    is the expected one word for word; a perturbation's edits are as many as asked for and possible, all different, and
    each fits (`edit_fits`).
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results: dict[str, str] = {}
    for withheld, wording in _WORDINGS.items():
        wordings = Wordings("calibration", allow_withheld=True, withheld=withheld, noise=0)
        for kind in KINDS:
            asked = [example(kind, seed, wordings) for seed in range(examples)]
            replies = generate(model, tokenizer, asked)
            right = sum(is_right(one, reply) for one, reply in zip(asked, replies, strict=True))
            results[f"{kind}, {wording}"] = rate(right, len(asked))
            if kind == "keywords":
                for field, (found, stated) in phrases_found(asked, replies).items():
                    results[f"{field} among the keywords, {wording}"] = rate(found, stated)
    return results


def phrases_found(asked: Sequence[Example], replies: Sequence[str]) -> dict[str, tuple[int, int]]:
    """By field: how many of the phrases that may change were listed, with the right value, and how many there were."""
    found: Counter[str] = Counter()
    stated: Counter[str] = Counter()
    for one, reply in zip(asked, replies, strict=True):
        keywords = json.loads(reply)["keywords"] if reply.endswith("]}") else []  # nothing, where it was cut off
        listed = {(keyword["phrase"], keyword["value"]) for keyword in keywords}
        for mention in one.description.mentions:
            if mention.field in EDIT_FACTOR and mention.field != one.forbidden:
                stated[mention.field] += 1
                found[mention.field] += (mention.phrase, mention.value) in listed
    return {field: (found[field], stated[field]) for field in EDIT_FACTOR if stated[field]}


def generate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, asked: Sequence[Example]) -> list[str]:
    """Replies to questions of one kind, as llm_service writes them: under the schema, alternatives sampled."""
    decoder = Decoder(model, llguidance.hf.from_tokenizer(tokenizer, n_vocab=model.config.vocab_size), 0)
    kind = asked[0].kind
    grammar = llguidance.LLMatcher.grammar_from_json_schema(_SCHEMAS[kind], overrides=JSON_STYLE)
    fixed = [message.model_dump() for message in asked[0].messages[:-1]]
    beginning = f"{tokenizer.apply_chat_template(fixed, tokenize=False)}<|user|>"
    prefix = tuple(tokenizer(beginning, add_special_tokens=False).input_ids)
    rows = []
    for number, one in enumerate(asked):
        question = f"{one.messages[-1].content}{END}<|assistant|>"
        tokens = tuple(tokenizer(question, add_special_tokens=False).input_ids)
        rows.append(Row(tokens, grammar, _TEMPERATURES[kind], _LONGEST[kind], number))
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    written = [one for batch in batches for one in decoder.write(prefix, 0, batch)]
    if any(isinstance(one, InvalidInput) for one in written):
        raise RuntimeError(f"the schema of {kind} is refused")
    return [tokenizer.decode(one.tokens, skip_special_tokens=True) for one in written if isinstance(one, Written)]


def is_right(one: Example, reply: str) -> bool:
    """Whether a reply answers an example's question."""
    try:
        value = json.loads(reply)
    except json.JSONDecodeError:
        return False
    if one.kind == "perturb":
        edits = value.get("edits") if isinstance(value, dict) else None
        return edits is not None and _edits_fit(one, edits)
    if one.kind != "alternatives":
        return bool(value == json.loads(one.reply))
    return _alternatives_fit(one, value)


def _edits_fit(one: Example, edits: Sequence[Mapping[str, str]]) -> bool:
    """Whether edits are as many as asked for and possible, each right, and all different."""
    different = len({(edit["from_phrase"], edit["to_value"]) for edit in edits}) == len(edits)
    return different and len(edits) == len(json.loads(one.reply)["edits"]) and all(edit_fits(one, e) for e in edits)


def edit_fits(one: Example, edit: Mapping[str, str]) -> bool:
    """Whether an edit changes one phrase of the factor to another value of its field, in a caption otherwise the same.

    `edit` has from_phrase, from_value, to_phrase, to_value and caption, as LANCE asks for them.
    """
    assert one.factor is not None
    for mention in perturbed(one.description, one.forbidden, one.factor):
        if (mention.phrase, mention.value) != (edit["from_phrase"], edit["from_value"]):
            continue
        wording = SLOTS[slot_of(mention.phrase, field=mention.field)].wordings.get(edit["to_value"])
        known = wording is not None and edit["to_phrase"] in wording.all and edit["to_value"] != mention.value
        if known and edit["caption"] == replaced(one.description.text, mention, edit["to_phrase"]):
            return True
    return False


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

"""Judge the answers of the tiny language model on scenes that it was not trained on.

Trainings and `research.measure.language` use it.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llguidance.hf
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from gateway.methods.counterfactual import Change, Edit
from gateway.methods.dillema import DillemaParameters, alternative_schema, keyword_schema, rewrite_schema
from gateway.methods.instruct import InstructParameters
from gateway.methods.lance import LANCE_FACTORS, LanceFactor, LanceParameters, perturb_schema
from gateway.methods.words import check_diff
from llm_service.decoding import Continuation, Decoder, Row
from llm_service.engines.transformers import json_grammar
from research.domain.language_domain import LanguageDomain
from research.domain.language_examples import (
    KINDS,
    MOST_EDITS,
    PERTURBING,
    Example,
    Kind,
    Wordings,
    example,
    perturb,
    replace_phrase,
)
from research.networks.language_tokenizer import END
from research.objects.language_domain import OBJECTS
from research.statistics.rates import fraction_text
from shared.chunks import chunks
from shared.problems import InvalidInput
from tinyworld.domain.descriptions import Withheld
from tinyworld.domain.wording import slot_of

TITLE = "tinyworld's language model"
ABOUT = (
    "LlamaForCausalLM that answers the questions of DILLEMA (which phrases may change, what could stand in their "
    "place, the caption with changes made) and LANCE (edits of the caption, each of one thing) on its captions. "
    "Judged on scenes of a split never trained on, free-running under the JSON schema; `withheld` means never trained "
    "on. Each figure: right / asked (share, 95 % Wilson interval). `LANCE, FACTOR`: captions that say something of "
    "the factor, one question each; an edit is right when it changes one phrase of the factor to another value, in a "
    "caption otherwise the same."
)
_BATCH = 50
WORDINGS: dict[Withheld, str] = {
    "nothing": "usual wording",
    "sentences": "withheld sentences and tasks",
    "phrases too": "withheld sentences, tasks and phrases",
}
_LONGEST: dict[Kind, int] = {  # tokens of a reply
    "keywords": 256, "alternatives": 256, "rewrite": 256, "perturb": 512, "instruct": 640,
}  # fmt: skip
_SCHEMAS: dict[Kind, dict[str, Any]] = {
    "keywords": keyword_schema(8),
    "alternatives": alternative_schema(3),
    "rewrite": rewrite_schema(),
    "perturb": perturb_schema(MOST_EDITS),
    "instruct": perturb_schema(MOST_EDITS, instructions=True),
}
_TEMPERATURES: dict[Kind, float] = {
    "keywords": 0.0,
    "alternatives": DillemaParameters().temperature,
    "rewrite": 0.0,
    "perturb": LanceParameters().temperature,
    "instruct": InstructParameters().temperature,
}


def evaluate(folder: Path, *, examples: int, domain: LanguageDomain[Any] = OBJECTS) -> dict[str, str]:
    """Correct / all answers (share, Wilson interval) by kind of question, for usual and for withheld wordings.

    A reply is right when it is valid JSON of the right shape and: keywords are exactly the phrases that may change,
    with factor and value; alternatives are distinct other values of the same place in the sentence; a rewritten caption
    is the expected one word for word; a perturbation's edits are as many as asked for and possible, all different, and
    each fits (`edit_fits`).
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results: dict[str, str] = {}
    for withheld, wording in WORDINGS.items():
        wordings = Wordings(domain, "calibration", allow_withheld=True, withheld=withheld, noise=0)
        for kind in KINDS:
            questions = [example(kind, seed, wordings) for seed in range(examples)]
            replies = generate(model, tokenizer, questions)
            right = sum(is_right(question, reply) for question, reply in zip(questions, replies, strict=True))
            results[f"{kind}, {wording}"] = fraction_text(right, len(questions))
            if kind == "keywords":
                for field, (hits, stated) in phrase_recall(questions, replies).items():
                    results[f"{field} among the keywords, {wording}"] = fraction_text(hits, stated)
    return results


@dataclass(frozen=True, slots=True)
class EditSuccess:
    """LANCE's edits of one factor: `passing` counts the distinct edits that pass the method's word diff.

    `answered` counts captions with a right edit among these. `silent` counts empty replies to captions without a
    possible edit.
    """

    edits: int
    right: int
    passing: int
    right_passing: int
    captions: int
    answered: int
    unchangeable: int
    silent: int


def edit_success(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    factor: LanceFactor,
    wordings: Wordings,
    captions: int,
) -> EditSuccess:
    """Ask LANCE's question about `captions` captions with a possible right edit, and about a fifth as many without."""
    possible = _first_examples(captions, factor, wordings, changeable=True)
    unchangeable = _first_examples(max(1, captions // 5), factor, wordings, changeable=False)
    edits = right = passing = right_passing = answered = 0
    for question, reply in zip(possible, generate(model, tokenizer, possible), strict=True):
        claims = json.loads(reply)["edits"] if reply.endswith("]}") else []  # nothing, where it was cut off
        good = [edit_fits(question, claim) for claim in claims]
        passed = [
            place for place, claim in enumerate(claims) if passes(question, claim) and claim not in claims[:place]
        ]
        edits, right, passing = edits + len(claims), right + sum(good), passing + len(passed)
        right_passing += sum(good[place] for place in passed)
        answered += any(good[place] for place in passed)
    silent = sum(reply == '{"edits":[]}' for reply in generate(model, tokenizer, unchangeable))
    return EditSuccess(edits, right, passing, right_passing, len(possible), answered, len(unchangeable), silent)


def _first_examples(count: int, factor: LanceFactor, wordings: Wordings, *, changeable: bool) -> list[Example]:
    """The first examples of a factor that have a right edit (`changeable`), or have none."""
    examples = (example("perturb", seed, wordings, factor) for seed in itertools.count())
    return list(
        itertools.islice((question for question in examples if (question.reply != '{"edits":[]}') == changeable), count)
    )


def passes(question: Example, claim: Mapping[str, str]) -> bool:
    """Whether the method accepts an edit of a reply: its caption differs in the stated change and nothing else."""
    assert question.factor is not None
    change = Change(question.factor, claim["from_phrase"], claim["to_phrase"], claim["from_value"], claim["to_value"])
    return check_diff(Edit((change,), question.description.text, claim["caption"])) is None


def success_rates(folder: Path, captions: int, wordings: Sequence[Withheld]) -> dict[str, str]:
    """`edit_success` of every factor in words, for the card."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results: dict[str, str] = {}
    for withheld in wordings:
        unwithheld = Wordings(OBJECTS, "calibration", allow_withheld=True, withheld=withheld, noise=0)
        for factor in LANCE_FACTORS:
            success = edit_success(model, tokenizer, factor, unwithheld, captions)
            name = f"LANCE, {factor}, {WORDINGS[withheld]}"
            results |= {
                f"{name}: right of all edits": fraction_text(success.right, success.edits),
                f"{name}: right of the edits that the word diff keeps": fraction_text(
                    success.right_passing, success.passing
                ),
                f"{name}: captions with a right edit": fraction_text(success.answered, success.captions),
                f"{name}: no edit where none is right": fraction_text(success.silent, success.unchangeable),
            }
            print(*(f"{key}: {value}" for key, value in list(results.items())[-4:]), sep="\n", flush=True)
    return results


def phrase_recall(questions: Sequence[Example], replies: Sequence[str]) -> dict[str, tuple[int, int]]:
    """By field: how many of the phrases that may change were listed, with the right value, and how many there were."""
    hits: Counter[str] = Counter()
    stated: Counter[str] = Counter()
    for question, reply in zip(questions, replies, strict=True):
        keywords = json.loads(reply)["keywords"] if reply.endswith("]}") else []  # nothing, where it was cut off
        listed = {(keyword["phrase"], keyword["value"]) for keyword in keywords}
        for mention in question.description.mentions:
            if mention.field in question.domain.edit_factor and mention.field != question.forbidden:
                stated[mention.field] += 1
                hits[mention.field] += (mention.phrase, mention.value) in listed
    return {field: (hits[field], stated[field]) for field in questions[0].domain.edit_factor if stated[field]}


def generate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example]) -> list[str]:
    """Replies to questions of one kind, as llm_service writes them: under the schema, alternatives sampled."""
    decoder = Decoder(model, llguidance.hf.from_tokenizer(tokenizer, n_vocab=model.config.vocab_size), 0)
    kind = examples[0].kind
    grammar = json_grammar(_SCHEMAS[kind])
    fixed = [message.model_dump() for message in examples[0].messages[:-1]]
    beginning = f"{tokenizer.apply_chat_template(fixed, tokenize=False)}<|user|>"
    prefix = tuple(tokenizer(beginning, add_special_tokens=False).input_ids)
    rows = []
    for number, sample in enumerate(examples):
        question = f"{sample.messages[-1].content}{END}<|assistant|>"
        tokens = tuple(tokenizer(question, add_special_tokens=False).input_ids)
        rows.append(Row(tokens, grammar, _TEMPERATURES[kind], _LONGEST[kind], number))
    written = [result for batch in chunks(rows, _BATCH) for result in decoder.write(prefix, 0, batch)]
    if any(isinstance(result, InvalidInput) for result in written):
        raise RuntimeError(f"the schema of {kind} is refused")
    return [
        tokenizer.decode(result.tokens, skip_special_tokens=True)
        for result in written
        if isinstance(result, Continuation)
    ]


def is_right(question: Example, reply: str) -> bool:
    """Whether a reply answers an example's question."""
    try:
        value = json.loads(reply)
    except json.JSONDecodeError:
        return False
    if question.kind in PERTURBING:
        edits = value.get("edits") if isinstance(value, dict) else None
        return edits is not None and _edits_fit(question, edits)
    if question.kind != "alternatives":
        return bool(value == json.loads(question.reply))
    return _alternatives_fit(question, value)


def _edits_fit(question: Example, edits: Sequence[Mapping[str, str]]) -> bool:
    """Whether there are as many edits as requested and possible, each correct, and all different.

    An instruction must have the new phrase.
    """
    if question.kind == "instruct" and any(edit["to_phrase"] not in edit["instruction"] for edit in edits):
        return False
    different = len({(edit["from_phrase"], edit["to_value"]) for edit in edits}) == len(edits)
    return (
        different
        and len(edits) == len(json.loads(question.reply)["edits"])
        and all(edit_fits(question, e) for e in edits)
    )


def edit_fits(question: Example, edit: Mapping[str, str]) -> bool:
    """Whether an edit changes one phrase of the factor to another value of its field, in a caption otherwise the same.

    `edit` has from_phrase, from_value, to_phrase, to_value and caption, as LANCE asks for them.
    """
    assert question.factor is not None
    slots = question.domain.slots
    for mention in perturb(question.description, question.forbidden, question.factor, question.domain):
        if (mention.phrase, mention.value) != (edit["from_phrase"], edit["from_value"]):
            continue
        place = slot_of(mention.phrase, slots, field=mention.field)
        wording = slots[place].wordings.get(edit["to_value"])
        is_other_value = wording is not None and edit["to_phrase"] in wording.all and edit["to_value"] != mention.value
        if is_other_value and edit["caption"] == replace_phrase(question.description.text, mention, edit["to_phrase"]):
            return True
    return False


def _alternatives_fit(question: Example, value: object) -> bool:
    if question.target is None or not isinstance(value, dict) or list(value) != ["alternatives"]:
        return False
    alternatives = [(a.get("phrase", ""), a.get("value", "")) for a in value["alternatives"] if isinstance(a, dict)]
    slots = question.domain.slots
    wordings = slots[slot_of(question.target.phrase, slots, field=question.target.field)].wordings
    fits = all(v in wordings and phrase in wordings[v].all for phrase, v in alternatives)
    values = [v for _, v in alternatives]
    return fits and len(set(values)) == len(values) == min(3, len(wordings) - 1) and question.target.value not in values

"""Generate a value that satisfies a schema with any engine, retrying once.

Check the JSON schemas of requests: a schema must bound the length of every reply.

Words for a gap in a text, by a masked language model (a BERT): weights in this process, batched.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import JsonValue
from referencing import Registry
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from llm_service.engines import LanguageModel
from shared.characters import is_storable, storable
from shared.problems import GenerationFailed, InvalidInput, NotFinite, OutOfMemory
from shared.profiles.weights import Weights
from shared.schemas.language import Filling, FillReply, FillRequest, Gap, GenerateReply, GenerateRequest
from shared.schemas.service import WeightsInfo
from shared.seeds import derive_seed
from shared.service.completion import Completion
from shared.service.control_words import control_words, refuse_control_words
from shared.service.load_progress import reading
from shared.service.model_service import MakeBatcher
from shared.service.server_replies import beginning, count_unusable

LENGTH_STEP = 16  # texts are padded to multiples of this number of tokens; only equal lengths share a batch
MAX_WORDS = 100  # per gap
MIN_LETTERS = 2  # per word; vocabularies have single letters as tokens
_WORD_STARTS = ("Ġ", "▁")  # prefixes of a word's first token, in vocabularies that have them

Candidates = list[tuple[str, float]]
NOT_FINITE = "the masked language model's output has NaN or infinity; set CONTRAFACT_DTYPE to float32 or bfloat16"
MAX_DEPTH = 40  # of objects and lists in the schema; validators recurse into each
MAX_NODES = 2_000  # objects and lists in the schema; a grammar grows with them
MAX_BYTES = 256 * 1024

# For each type, the keywords that bound the length of a reply.
_BOUNDS = {
    "string": ("maxLength",),
    "array": ("maxItems", "items"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "null": (),
}
_SUPPORTED = frozenset(
    {"type", "enum", "const", "anyOf", "oneOf", "properties", "required", "additionalProperties", "items", "minItems"}
    | {"maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"$schema", "title", "description", "default", "examples"}
)
# Greedy decoding would repeat the same reply, so the retry of a greedy request samples.
RETRY_TEMPERATURE = 0.7
_MAX_FAULT = 300  # characters
_MAX_TEXT = 100_000  # characters; a reply has at most 4,096 tokens


async def generate(model: LanguageModel, request: GenerateRequest, deadline: float) -> GenerateReply:
    """Return the model's reply as a value, from the first attempt whose text is complete and satisfies the schema.

    The second and last attempt has a seed derived from the first's. Raises InvalidInput (a schema that is invalid or
    unbounded) and GenerationFailed.
    """
    validator = build_validator(request.json_schema)
    faults: list[str] = []
    for attempt, variant in enumerate((request, _retry(request)), start=1):
        completion = await model.write(variant, deadline)
        value, fault = read(completion, validator)
        if fault is None:
            return GenerateReply(
                value=value,
                text=storable(completion.text),
                attempts=attempt,
                prompt_tokens=completion.prompt_tokens,
                completion_tokens=completion.completion_tokens,
            )
        count_unusable(model.name, "invalid reply")
        faults.append(fault)
    quoted = beginning(completion.text or completion.instead)
    raise GenerationFailed(
        f"{model.name} gave no valid reply in {len(faults)} attempts: {'; then '.join(faults)}{quoted}",
        members={"faults": list(faults)},
    )


def read(completion: Completion, validator: Draft202012Validator) -> tuple[JsonValue, str | None]:
    """Parse a reply: its value, and what is wrong with it (None if it is valid)."""
    if not completion.finished:
        return None, f"cut off after {completion.completion_tokens} tokens (raise max_tokens or shorten the prompt)"
    if len(completion.text) > _MAX_TEXT:  # by a server that ignores max_tokens; each edit of the reply keeps its text
        return None, f"longer than {_MAX_TEXT:,} characters"
    try:
        value: JsonValue = _JSON.decode(_json_in(completion.text))
    except (ValueError, RecursionError) as error:  # ValueError also for a number of thousands of digits
        return None, f"not JSON ({error})"[:_MAX_FAULT]
    if not is_storable(value):
        return None, "has U+0000, or half of a surrogate pair, which cannot be stored"
    violation = next(iter(validator.iter_errors(value)), None)
    return value, None if violation is None else f"{violation.json_path}: {violation.message}"[:_MAX_FAULT]


def _json_in(text: str) -> str:
    """The only object or array of a reply that begins or ends with prose ("Here is the JSON: {…}"); else the reply."""
    start = re.search(r"[{\[]", text)
    if start is None:
        return text
    try:
        _, end = _JSON.raw_decode(text, start.start())
    except ValueError:
        return text
    return text if re.search(r"[{}\[\]]", text[end:]) else text[start.start() : end]


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def _retry(request: GenerateRequest) -> GenerateRequest:
    update = {"seed": derive_seed("retry", request.seed), "temperature": request.temperature or RETRY_TEMPERATURE}
    return request.model_copy(update=update)


def build_validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    """Return a validator for replies; raises InvalidInput, naming the path, unless the schema is valid and bounded."""
    _check_size(schema)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidInput(f"json_schema{_place(error.absolute_path)}: {error.message[:300]}") from error
    _check_bounded(schema, "json_schema")
    return Draft202012Validator(schema, registry=Registry())  # an empty registry, which fetches nothing


def _check_size(schema: Mapping[str, Any]) -> None:
    level: list[Any] = [schema]
    nodes = depth = 0
    while level:
        nodes += len(level)
        depth += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise InvalidInput(
                f"json_schema has more than {MAX_DEPTH} levels or {MAX_NODES:,} objects and lists; ask for less"
            )
        inner = [list(node.values()) if isinstance(node, Mapping) else node for node in level]
        level = [value for values in inner for value in values if isinstance(value, Mapping | list)]
    try:
        text = json.dumps(schema, allow_nan=False)
    except ValueError as error:
        raise InvalidInput("json_schema: a number is infinite, NaN or of thousands of digits") from error
    if len(text) > MAX_BYTES:
        raise InvalidInput(f"json_schema has more than {MAX_BYTES:,} bytes; ask for less")


def _check_bounded(schema: object, place: str) -> None:
    if not isinstance(schema, Mapping):
        raise InvalidInput(f"{place}: `true` and `false` do not bound the reply; write out a schema here")
    if unsupported := sorted(set(schema) - _SUPPORTED):
        raise InvalidInput(f"{place}: {unsupported[0][:50]} is not supported; write the schema without it")
    if "const" in schema or "enum" in schema:
        return
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            for index, option in enumerate(schema[keyword]):
                _check_bounded(option, f"{place}.{keyword}[{index}]")
            return
    kind = schema.get("type")
    if kind == "object":
        _check_object(schema, place)
        return
    if not isinstance(kind, str) or kind not in _BOUNDS:
        raise InvalidInput(f"{place}: give one `type`, or `enum`, `const` or `anyOf`")
    for keyword in _BOUNDS[kind]:
        if keyword not in schema:
            raise InvalidInput(f"{place}: {kind} needs `{keyword}`, which bounds the reply")
    if kind == "array":
        _check_bounded(schema["items"], f"{place}.items")


def _check_object(schema: Mapping[str, Any], place: str) -> None:
    if schema.get("additionalProperties") is not False:
        raise InvalidInput(f"{place}: an object needs `additionalProperties: false`, which bounds the reply")
    for name, child in schema.get("properties", {}).items():
        _check_bounded(child, f"{place}.properties.{name}")


def _place(path: Any) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


class MaskedWords:
    """A masked language model with its tokenizer; its batcher's thread is the only one that runs it."""

    def __init__(self, weights: Weights, device: str, make_batcher: MakeBatcher, max_batch: int) -> None:
        """Load weights in Hub layout (safetensors, no remote code). Raises ValueError for a tokenizer without mask."""
        at = {"revision": weights.hub_revision, "subfolder": weights.subfolder}
        self._tokenizer = AutoTokenizer.from_pretrained(weights.location, **at)
        if self._tokenizer.mask_token is None:
            raise ValueError(f"{weights.id} has no mask token; choose a masked language model, such as a BERT")
        with reading(weights):
            model = AutoModelForMaskedLM.from_pretrained(
                weights.location,
                dtype=getattr(torch, weights.dtype),
                use_safetensors=True,
                variant=weights.variant,
                **at,
            )
            self._model = model.to(device).eval()
        self.info: WeightsInfo = weights.info("masked words", getattr(model.config, "_commit_hash", None))
        self._control_words = control_words(self._tokenizer)
        self._longest = min(int(self._tokenizer.model_max_length), int(model.config.max_position_embeddings))
        self._words = _whole_words(self._tokenizer)
        self._ids = torch.tensor(list(self._words), device=device)
        self._run(LENGTH_STEP, [self._tokens(Gap(before="A ", after="."))])
        self._batcher = make_batcher(self._run, max_batch)

    async def fill(self, request: FillRequest, deadline: float) -> FillReply:
        """The words that fit each gap. Raises InvalidInput for texts that are too long or hold control words."""
        refuse_control_words(self._control_words, [text for gap in request.gaps for text in (gap.before, gap.after)])
        rows = await asyncio.to_thread(lambda: [self._tokens(gap) for gap in request.gaps])
        lengths = [min(-(-len(row) // LENGTH_STEP) * LENGTH_STEP, self._longest) for row in rows]
        candidates: dict[int, Candidates] = {}
        for length in dict.fromkeys(lengths):
            indices = [index for index, row_length in enumerate(lengths) if row_length == length]
            batch = [rows[index] for index in indices]
            results = await self._batcher.submit_all(batch, key=length, deadline=deadline)
            candidates |= zip(indices, results, strict=True)
        return FillReply(
            fillings=[
                [Filling(word=word, probability=probability) for word, probability in candidates[index][: request.most]]
                for index in range(len(rows))
            ]
        )

    def _tokens(self, gap: Gap) -> tuple[int, ...]:
        row = self._tokenizer(f"{gap.before}{self._tokenizer.mask_token}{gap.after}")["input_ids"]
        if len(row) > self._longest:
            raise InvalidInput(
                f"a text with a gap has {len(row)} tokens, the model reads {self._longest}; send the sentence alone"
            )
        return tuple(row)

    @torch.inference_mode()
    def _run(self, length: int, rows: Sequence[tuple[int, ...]]) -> list[Candidates | NotFinite]:
        try:
            probabilities = self._probabilities(length, rows)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(f"the device has too little memory for {len(rows)} texts at once") from error
        best = probabilities.topk(min(MAX_WORDS, len(self._ids)))
        return [
            [(self._words[int(self._ids[index])], float(value)) for value, index in zip(values, indices, strict=True)]
            if finite
            else NotFinite(NOT_FINITE)
            for values, indices, finite in zip(
                best.values.cpu(), best.indices, probabilities.isfinite().all(dim=1).tolist(), strict=True
            )
        ]

    def _probabilities(self, length: int, rows: Sequence[tuple[int, ...]]) -> Tensor:
        """Probabilities (texts × whole words) at the gap of each text."""
        padding, mask = self._tokenizer.pad_token_id or 0, self._tokenizer.mask_token_id
        ids = torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows], device=self._model.device)
        attended = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows], device=self._model.device)
        logits = self._model(input_ids=ids, attention_mask=attended).logits
        gaps = torch.tensor([row.index(mask) for row in rows], device=self._model.device)
        at_gaps: Tensor = logits[torch.arange(len(rows), device=self._model.device), gaps].float()
        return at_gaps.softmax(-1)[:, self._ids].double()


def _whole_words(tokenizer: Any) -> dict[int, str]:
    """The tokens of a vocabulary that are whole words of letters only, by id."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    marked = any(token.startswith(_WORD_STARTS) for token in vocabulary)
    words = {}
    for token, number in sorted(vocabulary.items(), key=lambda item: item[1]):
        word = token.lstrip("".join(_WORD_STARTS))
        if word.isalpha() and len(word) >= MIN_LETTERS and token.startswith(_WORD_STARTS) == marked:
            words[number] = word
    return words

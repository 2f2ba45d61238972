"""Train the tiny language model: `python -m research.train.language --seconds 840`.

A Llama of 3 million parameters learns the questions of DILLEMA, LANCE and `instruct`. Everything before the question
itself (system message, worked example) is the same for all examples of a kind: it is computed once per step and shared.
The initial weights can copy (`induction.py`), and repeated random tokens maintain that ability. An interrupted run
resumes from the last checkpoint in `runs/language`. With `--start tinyworld/weights/language` the training starts from
earlier weights and their tokenizer (checkpoints in `runs/language-again`), which makes a new kind of question cheaper.
`--domain roads` trains on questions about driving scenes, into separate weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gateway.methods import dillema, instruct, lance
from gateway.methods.counterfactual import TaskDescription
from gateway.methods.lance import perturb_messages, perturb_schema
from gateway.methods.questions import digest_of_prompts
from research.domain.language_domain import LanguageDomain, english_words
from research.domain.language_examples import KINDS, Example, Kind, Wordings, example
from research.judges.language import ABOUT, TITLE, evaluate
from research.networks.half_precision import autocast
from research.networks.induction import ROPE_THETA, slow_down, write_induction
from research.networks.language_tokenizer import END, add_pieces, train_tokenizer
from research.objects.language_domain import OBJECTS
from research.roads.language_domain import ROADS
from research.system.folders import weights_of
from research.train.loop import Recipe, command_of, device, recipe_record, run_name, train, training_arguments
from research.train.model_card import save_model, title_of, write_card

LANGUAGE_DOMAINS: dict[str, LanguageDomain[Any]] = {domain.name: domain for domain in (OBJECTS, ROADS)}
_EXTRA_SHARE = 0.1  # rows of repeated random tokens, and of plain captions, relative to the questions
_SHARES: dict[Kind, float] = {
    "keywords": 0.12, "alternatives": 0.08, "rewrite": 0.2, "perturb": 0.4, "instruct": 0.2,
}  # fmt: skip
_TOKENIZER_EXAMPLES = 3_000


def main() -> None:
    """Train, judge on held-out scenes, and write weights, tokenizer and card."""
    arguments = training_arguments(__doc__, 840.0, domain=True, start=True)
    learnt, folder = LANGUAGE_DOMAINS[arguments.domain], weights_of(arguments.domain) / "language"
    run, rate = run_name("language", learnt.name, arguments.start), 2e-3 if arguments.start is None else 1.5e-3
    recipe = Recipe(run, arguments.seconds, 40, rate, warmup_steps=30, weight_decay=0.1, ema=0.98, seed=arguments.seed)
    if arguments.start is None:
        tokenizer = build_tokenizer(learnt)
        model = build_model(tokenizer).to(device())
    else:
        tokenizer, model = load_trained(arguments.start)
        model.to(device())
    progress = train(model, LanguageLoss(tokenizer, recipe.batch, learnt), recipe)
    save(model, tokenizer, folder)
    write_card(
        folder,
        title=title_of(TITLE, learnt.name),
        text=ABOUT,
        command=command_of("research.train.language", learnt.name, arguments.start, seconds=f"{recipe.seconds:.0f}"),
        results=evaluate(folder, examples=200, domain=learnt),
        record={**recipe_record(recipe, progress), "prompts": prompt_digests(), "split": "generator"},
    )


def prompt_digests() -> dict[str, str]:
    """What the prompts of each method were when the model was trained on them."""
    messages = perturb_messages(TaskDescription("task"), "caption", "class", "weather", 2, instruct.INSTRUCT)
    return {
        "dillema": dillema.prompt_digest(),
        "lance": lance.prompt_digest(),
        "instruct": digest_of_prompts(messages, perturb_schema(2, instructions=True)),
    }


def load_trained(folder: Path) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    """Tokenizer and weights of an earlier training, with tokens and embeddings for pieces of JSON that it lacked."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    add_pieces(tokenizer)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    slow_down(model)
    return tokenizer, model


def build_tokenizer(domain: LanguageDomain[Any] = OBJECTS) -> PreTrainedTokenizerFast:
    """A tokenizer of the prompts and captions that training shows, with pieces for other English words."""
    wordings = Wordings(domain, noise=0)
    examples = [example(kind, seed, wordings) for seed in range(_TOKENIZER_EXAMPLES) for kind in KINDS]
    fixed = [message.content for kind in KINDS for message in example(kind, 0, wordings).messages[:3]]
    texts = [f"{sample.messages[-1].content}\n{sample.reply}" for sample in examples]
    return train_tokenizer([*texts, *fixed * 100, " ".join(english_words())])


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The model with fresh weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",  # its backward is the faster on CPUs
    )
    model = LlamaForCausalLM(config)
    vocabulary = tokenizer.get_vocab()
    write_induction(
        model,
        [
            (vocabulary[word[1:]], token)
            for word, token in vocabulary.items()
            if word[0] == "Ġ" and word[1:] in vocabulary
        ],
    )
    return model


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights and tokenizer in Hub layout."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.do_sample = False
    save_model(model, folder)
    tokenizer.save_pretrained(folder)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Token ids (rows, length), right-padded, and labels of the same shape with -100 for ignored tokens."""

    ids: Tensor
    labels: Tensor


class LanguageLoss:
    """Mean loss over a step's batch: the kinds of question, plain captions, and repeated random tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, batch: int, domain: LanguageDomain[Any] = OBJECTS) -> None:
        self.tokenizer = tokenizer
        self.batch = batch
        self.wordings = Wordings(domain)
        self.prefix = cache(self._prefix)

    def __call__(self, model: LlamaForCausalLM, step: int) -> Tensor:
        where = next(model.parameters()).device
        random = Random(f"language/{step}")
        with autocast(where):
            losses = [
                self._loss(model, self.prefix(kind), self._questions(kind, random, max(1, round(self.batch * share))))
                * share
                for kind, share in _SHARES.items()
            ]
            extra = max(2, round(self.batch * _EXTRA_SHARE))
            losses.append(0.1 * self._loss(model, None, self._copies(random, extra)))
            losses.append(0.1 * self._loss(model, None, self._captions(random, extra)))
        return torch.stack(losses).sum() / 1.2

    def _loss(self, model: LlamaForCausalLM, prefix: Tensor | None, batch: _Batch) -> Tensor:
        where = next(model.parameters()).device
        ids, labels = batch.ids.to(where), batch.labels.to(where)
        shared = None
        if prefix is not None:
            computed = model.model(prefix.to(where)[None], use_cache=True).past_key_values
            shared = DynamicCache()
            for layer, layer_cache in enumerate(computed.layers):
                rows = (len(ids), -1, -1, -1)
                shared.update(layer_cache.keys.expand(rows), layer_cache.values.expand(rows), layer)
        hidden = model.model(ids, past_key_values=shared, use_cache=shared is not None).last_hidden_state
        learnt = labels[:, 1:] != -100
        logits: Tensor = model.lm_head(hidden[:, :-1][learnt])
        return nn.functional.cross_entropy(logits.float(), labels[:, 1:][learnt])

    def _prefix(self, kind: Kind) -> Tensor:
        """Token ids of everything before an example's question, up to the role of the user."""
        messages = [message.model_dump() for message in example(kind, 0, self.wordings).messages[:3]]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        return torch.tensor(self.tokenizer(f"{text}<|user|>", add_special_tokens=False).input_ids)

    def _questions(self, kind: Kind, random: Random, rows: int) -> _Batch:
        seeds = [random.randrange(10_000_000) for _ in range(rows)]
        return self._pad([self._row(example(kind, seed, self.wordings)) for seed in seeds])

    def _row(self, example: Example) -> tuple[list[int], list[int]]:
        question = self._ids(f"{example.messages[-1].content}{END}<|assistant|>")
        reply = self._ids(f"{example.reply}{END}")
        return question + reply, [-100] * len(question) + reply

    def _captions(self, random: Random, rows: int) -> _Batch:
        """Plain captions, so that the likelihood of a text alone means something."""
        begin, domain = self.tokenizer.bos_token, self.wordings.domain
        scenes = [domain.scene("generator", random.randrange(10_000_000), False) for _ in range(rows)]
        captions = [domain.described(scene, random.randrange(2**31), "nothing").text for scene in scenes]
        texts = [self._ids(f"{begin}{text}{END}") for text in captions]
        return self._pad([(ids, ids) for ids in texts])

    def _copies(self, random: Random, rows: int) -> _Batch:
        lowest = 6  # special tokens are never copied
        sequences = []
        for _ in range(rows):
            tokens = [random.randrange(lowest, len(self.tokenizer)) for _ in range(random.randint(10, 40))]
            start = random.randrange(len(tokens) // 2)
            repeated = tokens[start:]
            sequences.append((tokens + repeated, [-100] * (len(tokens) + 1) + repeated[1:]))
        return self._pad(sequences)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _pad(self, rows: list[tuple[list[int], list[int]]]) -> _Batch:
        longest = max(len(ids) for ids, _ in rows)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows])
        return _Batch(ids, torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows]))


if __name__ == "__main__":
    main()

"""Train and test a perturber for weathers that no shipped model knows: storm, sand and smoke.

    python -m tinyworld.measure.unseen_weather

writes caption-edit pairs, trains an adapter of the shipped language model (`llm_service.train_perturber`), loads
it into llm_service by a profile, and requests edits of unseen captions, with the adapter and without. The question is
LANCE's own (factor *weather*). A *change* is correct if it turns the caption's weather into one of the new ones, in a
phrase that fits the sentence; an *edit* if the new caption is also correct, word for word.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from gateway.methods.counterfactual import TaskDescription
from gateway.methods.lance import PERTURB, perturb_messages, perturb_schema
from llm_service.pairs import Pair
from llm_service.perturber_training import Recipe, train
from shared.problems import GenerationFailed
from shared.profiles import load_profile, shipped_profiles
from shared.schemas.language import GenerateRequest
from shared.weights import REPOSITORY
from tinyworld.domain.language_examples import rewritten
from tinyworld.domain.scenes import Split
from tinyworld.domain.wording import slot_of
from tinyworld.objects.captions import describe
from tinyworld.objects.language_domain import TASKS
from tinyworld.objects.phrases import SLOTS
from tinyworld.objects.world import sample_scene
from tinyworld.statistics.rates import fraction_text
from tinyworld.system.spawn_services import spawn_services

RECIPE = Recipe(batch=8, at_once=8, learning_rate=1e-2, epochs=1, held_out=0.03)
# Per grammatical place: value -> phrases.
UNSEEN_WEATHER: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "weather adjective": {"storm": ("stormy", "thundery"), "sand": ("dusty", "sandy"), "smoke": ("smoky", "sooty")},
    "weather adverb": {
        "storm": ("in a thunderstorm", "in a gale"),
        "sand": ("in a sandstorm", "in blowing sand"),
        "smoke": ("in thick smoke", "under black smoke"),
    },
}


def main() -> None:
    """Read the command line, train, ask the questions, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000, help="to train on")
    parser.add_argument("--asked", type=int, default=100, help="captions to ask about")
    parser.add_argument("--folder", type=Path, default=Path("runs/unseen-weather"), help="pairs, adapter, profile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    profile = train_perturber(options.folder, options.pairs)
    for name, profile_name in (("without the adapter", "tiny"), ("with the adapter", str(profile))):
        for prompt, right in replies(profile_name, options.asked).items():
            print(f"{name}: {prompt} {fraction_text(right, options.asked)}", flush=True)


def train_perturber(folder: Path, pairs: int) -> Path:
    """Pairs and an adapter trained on them, in `folder`; returns a profile that loads it."""
    folder.mkdir(parents=True, exist_ok=True)
    training_pairs = [question(seed, "generator").pair for seed in range(pairs)]
    (folder / "pairs.jsonl").write_text("".join(f"{pair.model_dump_json()}\n" for pair in training_pairs))
    weights = load_profile("tiny").language.weights
    assert weights is not None
    train(weights, training_pairs, RECIPE, folder / "adapter")
    text = shipped_profiles()["tiny"].read_text().replace('path = "tinyworld/', f'path = "{REPOSITORY}/tinyworld/')
    adapter = f'[language.adapter]\npath = "{(folder / "adapter").resolve()}"\nlicence = "none"\ngigabytes = 0.01\n'
    (folder / "unseen-weather.toml").write_text(f"{text}\n{adapter}")
    return folder / "unseen-weather.toml"


def replies(profile: str, count: int) -> dict[str, int]:
    """How many of `count` replies of the language service under a profile have a correct change, and a correct edit."""
    questions = [question(seed, "calibration") for seed in range(count)]
    with spawn_services(profile, ["llm_service"]) as services, ThreadPoolExecutor(8) as pool:

        def ask(item: WeatherQuestion) -> object:
            request = GenerateRequest(
                messages=item.pair.messages, json_schema=perturb_schema(1), temperature=0, max_tokens=320
            )
            try:
                return services.generate(request).value
            except GenerationFailed:  # no whole reply in two attempts
                return None

        answers = list(pool.map(ask, questions))
    changes = [
        change
        for item, value in zip(questions, answers, strict=True)
        if (change := right_change(item, value)) is not None
    ]
    return {"changes": len(changes), "edits": sum(changes)}


@dataclass(frozen=True, slots=True)
class WeatherQuestion:
    """LANCE's question about a caption that states its weather by `phrase` (meaning `value`), and an answer."""

    pair: Pair
    caption: str
    phrase: str
    value: str


def question(seed: int, split: Split) -> WeatherQuestion:
    """Question number `seed` (0 to 9,999,999) on scenes of a split; the same in every process."""
    random = Random(f"storms/{split}/{seed}")
    while True:
        scene = sample_scene(split, random.randrange(10_000_000))
        description = describe(scene, random.randrange(2**31))
        mention = next(
            (
                mention_of_caption
                for mention_of_caption in description.mentions
                if mention_of_caption.field == "weather"
            ),
            None,
        )
        if mention is not None:
            break
    task, phrases = (
        TaskDescription(random.choice(TASKS["label"].usual)),
        UNSEEN_WEATHER[slot_of(mention.phrase, SLOTS, field="weather")],
    )
    value = random.choice(list(phrases))
    edit = _edit(description.text, (mention.phrase, mention.value), random.choice(phrases[value]), value)
    messages = perturb_messages(task, description.text, scene.label, "weather", 1, PERTURB)
    reply = json.dumps({"edits": [edit]}, separators=(",", ":"))
    return WeatherQuestion(Pair(messages=messages, reply=reply), description.text, mention.phrase, mention.value)


def right_change(question: WeatherQuestion, value: object) -> bool | None:
    """None if the reply's one change is wrong; otherwise whether its new caption is right too."""
    edits: Sequence[object] = value["edits"] if isinstance(value, dict) else []
    edit = edits[0] if len(edits) == 1 else None
    if not isinstance(edit, dict):
        return None
    phrases = UNSEEN_WEATHER[slot_of(question.phrase, SLOTS, field="weather")]
    new = str(edit["to_phrase"])
    expected = [
        _edit(question.caption, (question.phrase, question.value), new, name)
        for name in phrases
        if new in phrases[name]
    ]
    if not expected or any(edit[key] != expected[0][key] for key in expected[0] if key != "caption"):
        return None
    return bool(edit == expected[0])


def _edit(caption: str, old: tuple[str, str], phrase: str, value: str) -> dict[str, str]:
    return {
        "from_phrase": old[0],
        "from_value": old[1],
        "to_phrase": phrase,
        "to_value": value,
        "caption": rewritten(caption, [(old[0], phrase)]),
    }


if __name__ == "__main__":
    main()

"""`python -m research.yardstick`: train the models, measure the key, run Contrafact, and score it or another method.

python -m research.yardstick train                 # the 24 models under test, into runs/yardstick/models
python -m research.yardstick key --out FILE        # their answer key
python -m research.yardstick run --size small      # `make yardstick`: Contrafact's answers, one per method, scored
python -m research.yardstick run --method dillema --design free balanced adaptive
python -m research.yardstick compare --size small  # the scores of all methods that were run, side by side
python -m research.yardstick dilution --size small # after `run`: where planted effects are lost
python -m research.yardstick score --rival FILE    # another method's answer (research/docs/yardstick.md)
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import get_args

import cv2
import torch
from pydantic import ValidationError

from research.system.packed import read_text, write_text
from research.system.public_jobs import embedded_client
from research.yardstick.answer_key import ALL_FIELDS, FIELDS, measure
from research.yardstick.classifiers import YARDSTICK, model_folder, train_all
from research.yardstick.contrafact import METHODS, SIZES, answers
from research.yardstick.dilution import dilutions
from research.yardstick.formats import Answer, AnswerKey, Score
from research.yardstick.plants import MODELS, PLANTED, TESTED_CLASSES
from research.yardstick.printing import format_answer, format_comparison, format_dilutions, format_key
from research.yardstick.score import score
from shared.problems import validation_sentence
from shared.profiles.weights import digest_folder
from shared.schemas.designs import DesignKind
from tinyworld.objects.demo import demo_scenes

COMMITTED_KEY = Path(__file__).parent / "key.json.gz"
SCENES = 250  # per class


def main() -> None:
    """The command."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes it started end, too
    torch.set_num_threads(options.threads)
    cv2.setNumThreads(1)
    try:
        COMMANDS[options.command](options)
    except (ValueError, OSError) as error:
        sys.exit(validation_sentence(error.errors()) if isinstance(error, ValidationError) else str(error))


def train(options: argparse.Namespace) -> None:
    """Train those of the 24 models that are missing."""
    train_all(MODELS)


def key(options: argparse.Namespace) -> None:
    """Measure the answer key of the models and write it."""
    fields = ALL_FIELDS if options.all_fields else FIELDS
    command = (
        f"python -m research.yardstick key --scenes {options.scenes}{' --all-fields' if options.all_fields else ''}"
    )
    measured = measure(options.scenes, fields, command)
    write_text(options.out, measured.model_dump_json(exclude_none=True) + "\n")
    print(format_key(measured))


def run(options: argparse.Namespace) -> None:
    """Train missing models, run Contrafact, score it. Measures a separate key if the weights differ."""
    train_all(MODELS)
    truth = fitting_key(options.size)
    command = f"python -m research.yardstick run --size {options.size} --method {' '.join(options.method)}"
    if options.design != ["free"]:
        command += f" --design {' '.join(options.design)}"
    for answer in answers(SIZES[options.size], command, options.method, designs=options.design):
        name = f"{answer.method.replace(' ', '-')}-{options.size}"
        scored = score(truth, answer)
        (YARDSTICK / f"{name}.json").write_text(answer.model_dump_json() + "\n")
        (YARDSTICK / f"{name}-score.json").write_text(scored.model_dump_json(indent=1) + "\n")
        print(f"{format_answer(scored)}\n\nThe answer itself: {YARDSTICK / name}.json\n", flush=True)
    compare(options)


def compare(options: argparse.Namespace) -> None:
    """Print the scores of all methods that were run with a size."""
    paths = sorted(YARDSTICK.glob(f"contrafact-*-{options.size}-score.json"))
    print(format_comparison([Score.model_validate_json(path.read_text(encoding="utf-8")) for path in paths]))


def dilution(options: argparse.Namespace) -> None:
    """Print how much of the planted effects is present in the counterfactuals of `run --method dillema`."""
    scenes = demo_scenes(TESTED_CLASSES, SIZES[options.size].sources)
    with embedded_client(YARDSTICK / "contrafact", str((YARDSTICK / "profile.toml").resolve())) as client:
        named = [model.name for model in PLANTED]
        ended = (client.job(job.id) for job in client.jobs().jobs if job.state == "done")
        finished_job = next((job.id for job in ended if job.models == named and job.images == len(scenes)), None)
        if finished_job is None:
            raise ValueError(
                f"no job of this size is finished; first: python -m research.yardstick run --size {options.size}"
            )
        print(format_dilutions(dilutions(client, finished_job, PLANTED, scenes)))


def score_rival(options: argparse.Namespace) -> None:
    """Score the answer of another method."""
    truth = AnswerKey.model_validate_json(read_text(options.key))
    answer = Answer.model_validate_json(read_text(options.rival))
    scored = score(truth, answer)
    print(scored.model_dump_json(indent=1) if options.json else format_answer(scored))


def fitting_key(size: str) -> AnswerKey:
    """The committed key if it fits these weights and factors, otherwise a newly measured key."""
    fields = ALL_FIELDS if size == "wide" else FIELDS
    key_file = YARDSTICK / "key.json"
    for path in (COMMITTED_KEY, key_file):
        if path.exists():
            key = AnswerKey.model_validate_json(read_text(path))
            weights = {model.name: model.weights for model in key.models}
            fits = all(
                weights.get(planned.name) == digest_folder(model_folder(planned.name).resolve()) for planned in MODELS
            )
            if fits and set(fields) <= set(key.fields):
                return key
    print(
        f"No key for these weights and {', '.join(fields)} yet; it is measured now, into {key_file}.", file=sys.stderr
    )
    measured = measure(SCENES, fields, f"python -m research.yardstick run --size {size}")
    key_file.write_text(measured.model_dump_json(exclude_none=True) + "\n")
    return measured


COMMANDS = {"train": train, "key": key, "run": run, "compare": compare, "dilution": dilution, "score": score_rival}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train")
    measuring = commands.add_parser("key")
    measuring.add_argument("--scenes", type=int, default=SCENES, help="per class")
    measuring.add_argument("--all-fields", action="store_true", help="also background, style and colour")
    measuring.add_argument("--out", type=Path, default=YARDSTICK / "key.json")
    running = commands.add_parser("run")
    running.add_argument("--size", choices=SIZES, default="small")
    running.add_argument("--method", nargs="+", choices=METHODS, default=METHODS, help="one after the other")
    running.add_argument(
        "--design", nargs="+", choices=get_args(DesignKind), default=["free"], help="of dillema and lance"
    )
    comparing = commands.add_parser("compare")
    comparing.add_argument("--size", choices=SIZES, default="small")
    diluting = commands.add_parser("dilution")
    diluting.add_argument("--size", choices=SIZES, default="small")
    scoring = commands.add_parser("score")
    scoring.add_argument("--rival", type=Path, required=True, help="an answer as JSON")
    scoring.add_argument("--key", type=Path, default=COMMITTED_KEY)
    scoring.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""LANCE's questions about your own captions; `python -m llm_service.collect_pairs` collects the answers to them.

    python -m gateway.methods.perturber_questions captions.txt --task "classify the vehicle" > questions.jsonl

`captions.txt` has one caption per line, followed by a tab and the class if it is known. Each factor is one question.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.methods.counterfactual import TaskDescription
from gateway.methods.lance import LANCE_FACTORS, PERTURB, LanceFactor, LanceParameters, perturb_messages, perturb_schema
from shared.schemas.language import GenerateRequest
from shared.seeds import derive_seed


def main() -> None:
    """Read the command line and print the questions, one JSON object per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captions", type=Path)
    parser.add_argument("--task", required=True, help="what the model under test does, as in a job")
    parser.add_argument("--factors", nargs="+", choices=LANCE_FACTORS, default=LANCE_FACTORS)
    parser.add_argument("--edits", type=int, default=LanceParameters().edits_per_factor, help="of a factor, at most")
    options = parser.parse_args()
    for line in options.captions.read_text(encoding="utf-8").splitlines():
        for request in questions(line, TaskDescription(options.task), options.factors, options.edits):
            print(request.model_dump_json())


def questions(
    line: str, task: TaskDescription, factors: Sequence[LanceFactor], edits: int
) -> Iterator[GenerateRequest]:
    """The questions that `lance` would ask about a line's caption; none for an empty line."""
    caption, _, label = (part.strip() for part in line.partition("\t"))
    for factor in factors if caption else ():
        yield GenerateRequest(
            messages=perturb_messages(task, caption, label or None, factor, edits, PERTURB),
            json_schema=perturb_schema(edits),
            temperature=LanceParameters().temperature,
            max_tokens=min(4096, 400 * edits),
            seed=derive_seed("perturber", caption, factor),
        )


if __name__ == "__main__":
    main()

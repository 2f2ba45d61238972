"""`contrafact audit-judge`: how often a profile's vision-language judge errs, on drawn edits of known answer.

Each edit changes one factor of a drawn scene. Its picture is the renderer counterfactual: the scene, truly changed.
Five pictures are broken, each in its way:

    gone        the object is painted over
    class       another class stands in its place
    unedited    nothing changed
    second      another factor is changed as well
    smeared     the object is blurred beyond recognition

All but the source have the light noise and softness of an editor, so that no two arms are equal to the pixel.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import tomlkit

from evaluator_service.judge import RemoteJudge
from gateway.analysis.judge_audit import KnownAnswers, audit_question, missed_share
from shared.chunks import chunks
from shared.media.images import Pixels, encode
from shared.problems import Problem
from shared.profiles.judge_audit import (
    LABEL,
    PAIRWISE,
    PROMPT,
    QUESTIONS,
    REST,
    VALUE,
    JudgeAudit,
    Limits,
    QuestionAudit,
    question_in_words,
)
from shared.profiles.profile import ProfileError, load_profile
from shared.profiles.weights import Server
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import JudgeReply, JudgeRequest, TokenUsage, Unanswered
from shared.seeds import derive_seed
from tinyworld.objects.proposals import FIELDS, Proposal, proposals
from tinyworld.objects.render import Mask, render
from tinyworld.objects.world import CLASSES, sample_scene

EDITS = 60
DEADLINE_SECONDS = 600.0  # of one request
AT_ONCE = 16  # requests
GOOD = "good"
FAULTS = ("gone", "class", "unedited", "second", "smeared")
# Which pictures a question is asked about, and whether "yes" is right. Whether an edit shows is not known of a picture
# whose object is gone, another, or smeared, since the edit may be of the object.
TRUTH: Mapping[str, Mapping[str, bool]] = {
    LABEL: {GOOD: True, "unedited": True, "second": True, "gone": False, "class": False, "smeared": False},
    VALUE: {GOOD: True, "second": True, "unedited": False},
    REST: {GOOD: True, "unedited": True, "gone": False, "class": False, "second": False, "smeared": False},
    PAIRWISE: {GOOD: True, "second": True, "unedited": False},
}


@dataclass(frozen=True, slots=True)
class KnownEdit:
    """A drawn edit with its source, its null arm, and its pictures by kind: good, and broken in five ways."""

    label: str
    change: tuple[str, str]
    source: ImagePayload
    null: ImagePayload
    images: Mapping[str, ImagePayload]

    def request(self, question: str, kind: str) -> JudgeRequest:
        """One question about one picture, as jobs ask it."""
        text = question_in_words(question, self.label, [self.change])
        beside = {REST: self.source, PAIRWISE: self.null}.get(question)
        return JudgeRequest(images=[self.images[kind]], questions=[text], beside=beside, pairwise=question == PAIRWISE)


class _Asked(NamedTuple):
    """A question about a picture of edit number `edit`, with what the judge says."""

    question: str
    kind: str
    edit: int
    words: str
    yes: float | Unanswered


def known_edits(count: int, seed: int) -> Iterator[KnownEdit]:
    """Edits of the first scenes of the split "calibration" that state a field, fields in turns."""
    index = made = 0
    while made < count:
        scene, random = sample_scene("calibration", index), np.random.default_rng((0xA0D, seed, index))
        index += 1
        field = FIELDS[made % len(FIELDS)]
        proposal = next(proposals(scene, random, (field,)), None)
        if proposal is not None:
            made += 1
            yield _known_edit(proposal, random)


def _known_edit(proposal: Proposal, random: np.random.Generator) -> KnownEdit:
    scene, target = proposal.scene, proposal.target
    good, (change,) = render(target), proposal.edit.changes
    label = str(random.choice([name for name in CLASSES if name != scene.label]))
    others = [str(field) for field in random.permutation([name for name in FIELDS if name != proposal.field])]
    other = next(proposals(scene, random, others)).target
    field = next(name for name in others if getattr(other, name) != getattr(scene, name))
    pictures = {
        GOOD: good.image,
        "gone": _without(good.image, good.object_mask),
        "class": render(target.changed(label=label)).image,
        "unedited": render(scene).image,
        "second": render(target.changed(**{field: getattr(other, field)})).image,
        "smeared": _smeared(good.image, good.object_mask),
    }
    return KnownEdit(
        scene.label,
        (change.from_phrase, change.to_phrase),
        ImagePayload(png=encode(render(scene).image)),
        ImagePayload(png=encode(_edited(render(scene).image, random))),
        {kind: ImagePayload(png=encode(_edited(picture, random))) for kind, picture in pictures.items()},
    )


def _edited(picture: Pixels, random: np.random.Generator) -> Pixels:
    """The picture with an editor's softness and noise."""
    soft = cv2.GaussianBlur(picture, (3, 3), 0.6).astype(np.float64)
    return np.asarray(np.clip(soft + random.normal(0.0, 2.0, picture.shape), 0, 255), np.uint8)


def _without(picture: Pixels, mask: Mask) -> Pixels:
    hidden = cv2.dilate(mask.astype(np.uint8), np.ones((9, 9), np.uint8))
    return np.asarray(cv2.inpaint(picture, hidden, 3, cv2.INPAINT_TELEA), np.uint8)


def _smeared(picture: Pixels, mask: Mask) -> Pixels:
    share = cv2.GaussianBlur(cv2.dilate(mask.astype(np.float32), np.ones((9, 9), np.uint8)), (0, 0), 3)[..., None]
    blurred = cv2.GaussianBlur(cv2.blur(picture, (33, 5)), (0, 0), 7)
    return np.asarray(share * blurred + (1 - share) * picture, np.uint8)


def audit_judge(server: Server, edits: Sequence[KnownEdit], seed: int = 1) -> JudgeAudit:
    """Ask a judge about edits and their broken pictures. Raises Problem, and ValueError for a missing key.

    `seed`: that of the edits; the intervals are drawn from it, too.
    """
    asked, usage = asyncio.run(_ask_all(RemoteJudge.connect(server), edits))
    questions = {name: _question_audit([row for row in asked if row.question == name], seed) for name in QUESTIONS}
    audit = JudgeAudit(
        url=server.url,
        model=server.model,
        revision=server.revision,
        prompt=PROMPT,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        edits=len(edits),
        seed=seed,
        questions=questions,
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
    )
    return audit.model_copy(update={"missed": _missed(asked, audit)})


async def _ask_all(judge: RemoteJudge, edits: Sequence[KnownEdit]) -> tuple[list[_Asked], TokenUsage]:
    places = [(name, kind, edit) for edit in range(len(edits)) for name in QUESTIONS for kind in TRUTH[name]]
    asked, usage = list[_Asked](), TokenUsage()
    for batch in chunks(places, AT_ONCE):
        requests = [edits[edit].request(name, kind) for name, kind, edit in batch]
        deadline = time.monotonic() + DEADLINE_SECONDS
        replies: list[JudgeReply] = await asyncio.gather(*(judge.judge(request, deadline) for request in requests))
        for place, request, reply in zip(batch, requests, replies, strict=True):
            asked.append(_Asked(*place, request.questions[0], reply.yes[0][0]))
            usage = sum(filter(None, reply.usage or ()), usage)
    return asked, usage


def _question_audit(rows: Sequence[_Asked], seed: int) -> QuestionAudit:
    words = {text: number for number, text in enumerate(dict.fromkeys(row.words for row in rows))}
    answers = KnownAnswers(
        yes=np.array([np.nan if isinstance(row.yes, str) else row.yes for row in rows]),
        valid=np.array([TRUTH[row.question][row.kind] for row in rows], np.bool_),
        group=np.array([row.edit for row in rows], np.int64),
        words=np.array([words[row.words] for row in rows], np.int64),
        refused=sum(row.yes == "refused" for row in rows),
    )
    return audit_question(answers, derive_seed("judge audit", seed, rows[0].question))


def _missed(asked: Sequence[_Asked], audit: JudgeAudit) -> dict[str, float]:
    """The share of each fault that the sound questions asked about it let pass, with the better of value and pair."""
    counting = {*audit.counting.shown[:1], *audit.counting.others}
    lowest: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in asked:
        if row.kind in FAULTS and row.question in counting and not isinstance(row.yes, str):
            lowest[row.kind][row.edit] = min(row.yes, lowest[row.kind].get(row.edit, 1.0))
    return {kind: missed_share(np.array(list(lowest[kind].values()))) for kind in FAULTS}


def audit_lines(audit: JudgeAudit) -> Iterator[str]:
    """What the audit found, a line for each question."""
    yield f"{audit.model} {audit.revision} at {audit.url}, {audit.edits} edits, seed {audit.seed}:"
    for name, figures in audit.questions.items():
        missing = f"; {figures.refused} refused, {figures.unreadable} unreadable of {figures.valid + figures.invalid}"
        yield (
            f"{name:12} {figures.nature}: AUROC {_limits(figures.auroc)}, sensitivity {_limits(figures.sensitivity)} "
            f"of {figures.valid}, specificity {_limits(figures.specificity)} of {figures.invalid}"
            + (missing if figures.refused + figures.unreadable else "")
        )
    yield "let pass: " + ", ".join(f"{kind} {share:.0%}" for kind, share in audit.missed.items())
    if audit.prompt_tokens + audit.completion_tokens:
        yield f"{audit.prompt_tokens:,} tokens of questions, {audit.completion_tokens:,} of answers"
    counting = audit.counting
    if counting.names:
        yield f"These answers count: {', '.join(counting.names)}."
    else:
        yield "It passed no question, so its answers never count."
    if PAIRWISE in counting.shown[:1]:
        yield 'Beside the null arm it misses less: give jobs the signals ["judge", "pairwise"].'


def _limits(figure: Limits | None) -> str:
    return "unknown" if figure is None else f"{figure[0]:.2f} ({figure[1]:.2f} to {figure[2]:.2f})"


def write_audit(path: Path, audit: JudgeAudit) -> None:
    """Put `[evaluator.judge_audit]` into a profile's file, in place of an earlier one. Raises ValueError."""
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    evaluator = document.setdefault("evaluator", tomlkit.table())
    evaluator["judge_audit"] = tomlkit.item(audit.model_dump(mode="json", exclude_none=True))
    new = path.with_suffix(".toml.new")
    new.write_text(tomlkit.dumps(document), encoding="utf-8")
    try:
        load_profile(str(new))
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="contrafact audit-judge", description=__doc__.partition("\n")[0])
    parser.add_argument("profile", help="a shipped profile, or the path of a TOML file, with [evaluator.judge]")
    parser.add_argument("--edits", type=int, default=EDITS, help=f"drawn edits, 21 questions each (default: {EDITS})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put [evaluator.judge_audit] into the profile's file")
    options = parser.parse_args()
    try:
        judge = load_profile(options.profile).evaluator.judge
        if judge is None:
            sys.exit(f"profile {options.profile} has no judge; name a vision server as [evaluator.judge]")
        if options.write and not Path(options.profile).is_file():
            sys.exit(f"{options.profile} is no file; copy the shipped profile, and audit the copy")
        audit = audit_judge(judge, list(known_edits(options.edits, options.seed)), options.seed)
        print("\n".join(audit_lines(audit)))
        if options.write:
            write_audit(Path(options.profile), audit)
            print(f"[evaluator.judge_audit] is in {options.profile}; restart gateway and workers with it.")
    except (ProfileError, Problem, ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

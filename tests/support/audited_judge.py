"""An audit of a judge, sound at some questions, and the service that asks this judge."""

from __future__ import annotations

from collections.abc import Collection

from shared.profiles.judge_audit import PROMPT, QUESTIONS, JudgeAudit, QuestionAudit, revision_asked
from shared.profiles.weights import Server
from shared.schemas.service import ServiceInfo

JUDGE = Server(url="http://judge:8000/v1", model="vlm", revision="7", licence="none", gigabytes=1)


def audit_of(judge: Server, sound: Collection[str]) -> JudgeAudit:
    """An audit that found the judge sound at these questions, and noisy at the others."""
    right, noisy = (1.0, 0.95, 1.0), (0.8, 0.7, 0.85)
    return JudgeAudit(
        url=judge.url,
        model=judge.model,
        revision=judge.revision,
        prompt=PROMPT,
        date="2026-11-28",
        edits=60,
        seed=1,
        questions={
            name: QuestionAudit(
                valid=120, invalid=60, refused=0, unreadable=0,
                auroc=right if name in sound else noisy,
                sensitivity=right if name in sound else noisy,
                specificity=right if name in sound else noisy,
                nature="sound" if name in sound else "errs often",
            )
            for name in QUESTIONS
        },
    )  # fmt: skip


def asks(judge: Server) -> ServiceInfo:
    """An evaluator that asks a judge."""
    weights = judge.info("judge").model_copy(update={"revision": revision_asked(judge)})
    return ServiceInfo(
        service="evaluator_service",
        profile="ours",
        device="cpu",
        deterministic=True,
        revision="1",
        weights=[weights],
        version="1",
    )

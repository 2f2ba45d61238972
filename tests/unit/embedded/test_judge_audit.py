"""The audit of a judge is stored in its profile, and holds for this judge alone."""

from __future__ import annotations

from pathlib import Path

from embedded.judge_audit import write_audit
from shared.profiles.judge_audit import LABEL, PAIRWISE, VALUE, CountingQuestions, counting_questions
from shared.profiles.profile import load_profile
from tests.support.audited_judge import JUDGE, audit_of


def test_an_audit_is_stored_in_the_profile_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(
        f'[profile]\nname = "ours"\ndescription = "x"\nbase = "tiny"\n\n[evaluator.judge]\nurl = "{JUDGE.url}"\n'
        'model = "vlm"\nrevision = "7"\nlicence = "none"\ngigabytes = 1 # of weights\n\n[thresholds]\n'
    )
    audit = audit_of(JUDGE, [LABEL, VALUE])
    for stored in (audit, audit.model_copy(update={"date": "2020-01-01"})):
        write_audit(path, stored)
        evaluator = load_profile(str(path)).evaluator
        assert evaluator.judge_audit == stored
        assert stored.misfit(evaluator.judge) == ""
    assert path.read_text().count("judge_audit]") == 1
    assert "# of weights" in path.read_text()


def test_an_audit_of_another_judge_counts_for_nothing() -> None:
    audit = audit_of(JUDGE, [LABEL, VALUE, PAIRWISE])
    assert counting_questions(audit, JUDGE) == CountingQuestions((VALUE, PAIRWISE), (LABEL,))
    assert counting_questions(None, JUDGE).names == ()
    for change in ({"revision": "8"}, {"model": "larger"}, {"url": "http://elsewhere/v1"}):
        assert counting_questions(audit, JUDGE.model_copy(update=change)).names == ()
    assert counting_questions(audit.model_copy(update={"prompt": "other words"}), JUDGE).names == ()
    better = audit.questions[PAIRWISE].model_copy(update={"auroc": (0.99, 0.95, 1.0)})
    worse = audit.questions[VALUE].model_copy(update={"auroc": (0.95, 0.92, 0.98)})
    beside = audit.model_copy(update={"questions": {**audit.questions, PAIRWISE: better, VALUE: worse}})
    assert counting_questions(beside, JUDGE).shown == (PAIRWISE, VALUE)
    assert beside.digest != audit.digest

"""Do human studies recover the truth? A thousand simulated raters of known quality in each setting.

A study has 200 edits of 100 source images, five ratings each, by raters who see 25 edits, their control items and one
attention check; a quarter more raters are invited than needed. Of the null arms, one in six has lost its object. Raters
are careful (5 % of answers wrong), hasty (15 %), guessing, or say yes to everything. Exclusion, consensus and α are the
gateway's own functions. Run: `python -m benchmarks.simulated_raters`.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from gateway.analysis.agreement import alpha, alpha_interval
from gateway.studies.ratings import Answers, RatedItem, Ratings, score_raters
from gateway.studies.results import figures
from shared.schemas.studies import ATTENTION, LABEL_KEPT, ItemKind, StudyRequest
from shared.seeds import derive_seed

Quality = Literal["careful", "hasty", "guessing", "yes to all"]
ERRORS: Mapping[Quality, float] = {"careful": 0.05, "hasty": 0.15, "guessing": 0.5}
MIXES: Mapping[str, Mapping[Quality, float]] = {
    "careful": {"careful": 1.0},
    "hasty": {"hasty": 1.0},
    "mixed": {"careful": 0.7, "hasty": 0.1, "guessing": 0.1, "yes to all": 0.1},
    "poor": {"careful": 0.4, "hasty": 0.2, "guessing": 0.2, "yes to all": 0.2},
}
EDITS, SIBLINGS, PER_ITEM, PER_RATER = 200, 2, 5, 25
RATERS = EDITS * PER_ITEM // PER_RATER * 5 // 4
LOST_NULLS = 1 / 6


class Study(NamedTuple):
    """A simulated study: its ratings, the truth of each edit, and the quality of each rater."""

    ratings: Ratings
    valid: dict[str, bool]
    quality: dict[str, Quality]


def simulate(mix: Mapping[Quality, float], share: float, controls: int, random: np.random.Generator) -> Study:
    """One study whose edits are valid at rate `share`, independently."""
    request = StudyRequest(questions=[LABEL_KEPT], controls=controls)
    truths = {f"edit-{number:03}": bool(random.random() < share) for number in range(EDITS)}
    items = {name: _item(name, "edit", int(name[5:]) // SIBLINGS) for name in truths}
    for number in range(controls):
        kind: ItemKind = "broken" if number < controls // 2 else "null"
        name = f"{kind}-{number}"
        items[name] = _item(name, kind, EDITS + number)
        truths[name] = kind == "null" and bool(random.random() >= LOST_NULLS)
    items["attention"] = _item("attention", "attention", 0)
    quality = {f"rater-{number:03}": _draw(mix, random) for number in range(RATERS)}
    load: Counter[str] = Counter()
    answers: dict[str, dict[str, Answers]] = {}
    checks = [name for name, item in items.items() if item.kind != "edit"]
    for rater, kind_of_rater in quality.items():
        edits = sorted(truths, key=lambda name: (load[name], random.random()))
        chosen = [name for name in edits if items[name].kind == "edit"][:PER_RATER]
        load.update(chosen)
        answers[rater] = {
            name: {"label_kept": _answer(kind_of_rater, truths.get(name), random)} for name in [*chosen, *checks]
        }
    scores, dropped = score_raters(request, {name: item.kind for name, item in items.items()}, answers)
    return Study(Ratings(request, items, answers, scores, dropped), truths, quality)


def _item(name: str, kind: ItemKind, group: int) -> RatedItem:
    return RatedItem(name, kind, name, "dillema", str(group))


def _draw(mix: Mapping[Quality, float], random: np.random.Generator) -> Quality:
    return list(mix)[int(random.choice(len(mix), p=list(mix.values())))]


def _answer(quality: Quality, valid: bool | None, random: np.random.Generator) -> str:
    """A rater's answer; `valid` is None for the attention check, which careful and hasty raters read."""
    if quality == "yes to all":
        return "yes"
    if quality == "guessing":
        return str(random.choice(["yes", "no", "unsure"] if valid is None else ["yes", "no"]))
    if valid is None:
        return ATTENTION["yes_no"]
    return "yes" if valid != (random.random() < ERRORS[quality]) else "no"


def expected_alpha(share: float, error: float) -> float:
    """α of raters who err independently at this rate, for edits valid at rate `share`, of infinitely many items."""
    says_yes = share * (1 - error) + (1 - share) * error
    return 1 - error * (1 - error) / (says_yes * (1 - says_yes))


def measure(mix: Mapping[Quality, float], share: float, controls: int, studies: int) -> dict[str, str]:
    """What the studies of a setting recover, as columns of a table."""
    outcome = Counts()
    for seed in range(studies):
        random = np.random.default_rng(derive_seed("raters", seed, repr(sorted(mix.items())), str(share), controls))
        study = simulate(mix, share, controls, random)
        for rater, quality in study.quality.items():
            outcome.excluded[quality].append(study.ratings.scores[rater].excluded)
        _add_consensus(study, share, outcome)
        _add_alpha(study, mix, share, seed, outcome)
    return outcome.columns(studies)


@dataclass
class Counts:
    """Sums over the studies of a setting."""

    excluded: defaultdict[Quality, list[bool]] = field(default_factory=lambda: defaultdict(list))
    totals: Counter[str] = field(default_factory=Counter)
    alphas: list[float] = field(default_factory=list)
    expected: float | None = None

    def columns(self, studies: int) -> dict[str, str]:
        """As text, with n."""
        totals = self.totals
        shares = {f"excluded: {name}": _share(sum(flags), len(flags)) for name, flags in self.excluded.items()}
        alpha_words = f"{np.mean(self.alphas):.3f}"
        if self.expected is not None:
            alpha_words += f", expected {self.expected:.3f}; in the interval {_share(totals['alpha'], studies)}"
        return {
            **shares,
            "consensus": _share(totals["decided"], totals["complete"]),
            "right": _share(totals["right"], totals["decided"]),
            "right, nobody excluded": _share(totals["right of all"], totals["decided of all"]),
            "valid share in the interval": _share(totals["share"], studies),
            "alpha": alpha_words,
        }


def _share(count: int, n: int) -> str:
    return f"{100 * count / n:.1f} % of {n}" if n else "none"


def _add_consensus(study: Study, share: float, outcome: Counts) -> None:
    """Compare the consensus with the truth: with the exclusion of raters, and with everybody's answers."""
    ratings = study.ratings
    nobody = {rater: replace(score, unchecked=False, failed=False) for rater, score in ratings.scores.items()}
    for suffix, used in (("", ratings), (" of all", replace(ratings, scores=nobody))):
        complete = used.complete
        for item in used.edits:
            if item.id not in complete:
                continue
            row = figures(LABEL_KEPT, "dillema", [item], complete, used.request.consensus)
            assert row.yes is not None
            verdict = bool(row.yes.count) if row.undecided == 0 else None
            outcome.totals["complete" + suffix] += 1
            outcome.totals["decided" + suffix] += verdict is not None
            outcome.totals["right" + suffix] += verdict is study.valid[item.id]
    rate = figures(LABEL_KEPT, "dillema", ratings.edits, ratings.complete, ratings.request.consensus).decided
    assert rate is not None
    outcome.totals["share"] += rate.low <= share <= rate.high


def _add_alpha(study: Study, mix: Mapping[Quality, float], share: float, seed: int, outcome: Counts) -> None:
    """α of the raters who are not excluded; for raters of one quality, whether its interval has the expected value."""
    usable = study.ratings.usable
    edits = [item for item in study.ratings.edits if item.id in usable]
    rows = [
        [sum(answers["label_kept"] == answer for answers in usable[item.id]) for answer in ("yes", "no")]
        for item in edits
    ]
    counts = np.array(rows, np.int64)
    group = np.array([int(item.group) for item in edits], np.int64)
    value, interval = alpha(counts, "nominal"), alpha_interval(counts, "nominal", group, seed)
    if value is None or interval is None:
        return
    outcome.alphas.append(value)
    if len(mix) == 1:
        outcome.expected = expected_alpha(share, ERRORS[next(iter(mix))])
        outcome.totals["alpha"] += interval[0] <= outcome.expected <= interval[1]


def main() -> None:
    """Print a paragraph per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=20, help=f"of {RATERS} raters each; 20 are a thousand raters")
    studies = parser.parse_args().studies
    for name, mix in MIXES.items():
        for share in (0.5, 0.9):
            for controls in (4, 6, 8):
                columns = measure(mix, share, controls, studies)
                print(f"{name}, {share:.0%} valid, {controls} control items, {RATERS * studies} raters", flush=True)
                for column, text in columns.items():
                    print(f"  {column}: {text}")


if __name__ == "__main__":
    main()

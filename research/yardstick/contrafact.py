"""Contrafact's own answers: jobs through the public API of an embedded system, over one set of source images.

The models under test are registered by a profile, the shipped `tiny` one with these models added. A job takes at most
20 models, so there are several jobs of each method; they share the recorded renderings of the first one. So do the
designs of a method, as far as they make the same edits: within a size they have the same source images, seeds and
renderings at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from gateway.jobs.designs import planned_renderings
from gateway.methods import METHODS as REGISTERED
from gateway.methods import read_method
from gateway.methods.inverted import SweepParameters
from research.system.public_jobs import embedded_client, figures, run_job, seconds_of
from research.yardstick.classifiers import YARDSTICK, model_folder
from research.yardstick.formats import Answer, FoundCell, Spent
from research.yardstick.plants import CLEAN, PLANTED, TESTED_CLASSES, Planned
from shared.profiles.profile import shipped_profiles
from shared.profiles.weights import REPOSITORY
from shared.schemas.designs import ChosenValue, DesignKind
from shared.schemas.effects import CellEffect
from shared.schemas.jobs import JobSpec, MethodChoice
from shared.schemas.results import JobResults
from tinyworld.objects.demo import write_demo
from tinyworld.objects.phrases import SLOTS

TASK = "classify the vehicle in the picture"
_MODEL = """
[evaluator.models_under_test.{name}]
path = "{path}"
licence = "Apache-2.0"
gigabytes = 0.01
"""
METHODS = ("dillema", "lance", "shifts", "lance-r", "reconstruction", "corruptions")
STEERED = ("dillema", "lance")  # the methods whose values a design can choose
MOST_EDITS_PER_FACTOR = 3  # per question of lance; the tiny language model is not trained on more, and returns fewer


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the jobs. Sources are per class; every requested factor needs its own counterfactuals.

    `fractions`: the self-attention fractions that methods sweep; empty means the profile's own. `values` of the factor
    weather: what balanced and adaptive designs change to; empty means the profile's own.
    """

    sources: int
    factors: tuple[str, ...]
    counterfactuals: int
    fractions: tuple[float, ...] = ()
    values: tuple[str, ...] = ()


SIZES = {
    "quick": Size(sources=30, factors=("weather",), counterfactuals=5, fractions=(0.5,)),
    "small": Size(sources=60, factors=("weather",), counterfactuals=5, fractions=(0.5,)),
    "full": Size(sources=300, factors=("weather",), counterfactuals=5),
    "wide": Size(sources=400, factors=("weather", "background", "domain", "adjective"), counterfactuals=16),
}


def answers(
    size: Size,
    command: str,
    methods: Sequence[str] = METHODS,
    groups: Sequence[Sequence[Planned]] = (PLANTED, CLEAN),
    designs: Sequence[DesignKind] = ("free",),
) -> Iterator[Answer]:
    """One answer per method and design, over all models; each group is one job. A restart reuses recorded renderings.

    Methods without chosen values have the free design only.
    """
    folder = YARDSTICK / f"sources-{size.sources}"
    write_demo(folder, TESTED_CLASSES, size.sources)
    profile = YARDSTICK / "profile.toml"
    profile.write_text(profile_text([model for group in groups for model in group]))
    with embedded_client(YARDSTICK / "contrafact", str(profile.resolve())) as client:
        for method, design in _designs_of(methods, designs):
            spec = spec_of(method, design, size)
            jobs = []
            for group in groups:
                spec_of_group = spec.model_copy(update={"models": [model.name for model in group]})
                jobs.append(run_job(client, spec_of_group, folder, f"{method}, {design}, {len(group)} models"))
            measured = [figures(client, job) for job in jobs]
            seconds = sum(map(seconds_of, jobs))
            answer = merge(measured, method, factors_of(method, size), command, [job.models for job in jobs], seconds)
            yield answer.model_copy(update={"method": name_of(method, design)})


def name_of(method: str, design: DesignKind) -> str:
    """The name of a method's answer: `contrafact dillema`, or with another design than the free one its name, too."""
    return f"contrafact {method}" + ("" if design == "free" else f" {design}")


def spec_of(method: str, design: DesignKind, size: Size) -> JobSpec:
    """The job of a method, without models. Other designs may render as many images as the free one at most."""
    parameters = parameters_of(method, size)
    spec = JobSpec(task_description=TASK, methods=[MethodChoice(name=method, parameters=parameters)])
    if design == "free":
        return spec
    (plan,) = planned_renderings([read_method(method, parameters)], size.sources * len(TESTED_CLASSES))
    budget = plan.edits + plan.null_arms + plan.sham_arms
    values = tuple(ChosenValue(factor="weather", value=value) for value in size.values)
    return spec.model_copy(update={"design": design, "budget": budget, "values": values})


def _designs_of(methods: Sequence[str], designs: Sequence[DesignKind]) -> list[tuple[str, DesignKind]]:
    """The methods with their designs, in order."""
    return [(name, design) for name in methods for design in designs if design == "free" or name in STEERED]


def parameters_of(method: str, size: Size) -> dict[str, JsonValue]:
    """The parameters of a method for the factors of a size."""
    factors: list[JsonValue] = [*size.factors]
    swept: dict[str, JsonValue] = {}
    if size.fractions and issubclass(REGISTERED[method].parameters, SweepParameters):
        swept = {"self_fractions": [*size.fractions]}
    if method == "dillema":
        # same_seed: one null arm for all counterfactuals of an image under the same edges
        return {"factors": factors, "counterfactuals_per_image": size.counterfactuals, "same_seed": True}
    if method == "lance":
        edits_per_factor = min(MOST_EDITS_PER_FACTOR, size.counterfactuals)
        counts: dict[str, JsonValue] = {
            "edits_per_factor": edits_per_factor,
            "counterfactuals_per_image": size.counterfactuals,
        }
        return {"factors": factors, **counts, **swept}
    if method == "shifts":
        return {"shifts": [*_shifts("time adverb"), *_shifts("weather adverb")], **swept}
    if method == "corruptions":
        return {"corruptions": ["gaussian_noise", "motion_blur", "fog"]}
    return swept


def factors_of(method: str, size: Size) -> tuple[str, ...]:
    """The factors requested from a method; `shifts` exist for times and weathers only."""
    return ("weather",) if method == "shifts" else size.factors


def _shifts(slot: str) -> Iterator[JsonValue]:
    """A shift to each value of a slot, in the words of the captions."""
    wordings = SLOTS[slot].wordings
    for value, wording in wordings.items():
        replaces: list[JsonValue] = [
            phrase for other_value in wordings if other_value != value for phrase in wordings[other_value].usual
        ]
        yield {"phrase": wording.usual[0], "factor": "weather", "value": value, "replaces": replaces}


def profile_text(planned: Sequence[Planned]) -> str:
    """The `tiny` profile with the models of the yardstick added; its paths made absolute."""
    tiny = shipped_profiles()["tiny"].read_text(encoding="utf-8")
    rooted = tiny.replace('"tinyworld/', f'"{REPOSITORY.as_posix()}/tinyworld/')
    return rooted + "".join(
        _MODEL.format(name=model.name, path=model_folder(model.name).resolve().as_posix()) for model in planned
    )


def merge(
    measured: Sequence[JobResults],
    method: str,
    factors: Sequence[str],
    command: str,
    models: Sequence[Sequence[str]],
    seconds: float,
) -> Answer:
    """The jobs' results of one method as its answer. A cell with too few images has an effect but no interval.

    Cells of factors that were not requested (`lance-r` and `corruptions` name values of *other*) are left out.
    """
    first_answer = measured[0]
    return Answer(
        method=f"contrafact {method}",
        command=command,
        models=[name for names in models for name in names],
        factors=list(factors),
        spent=Spent(
            seconds=round(seconds, 1),
            source_images=first_answer.sources - first_answer.sources_failed,
            counterfactuals=next(f.accepted.count for f in first_answer.funnels if f.method == method),
            network_evaluations=next(c.evaluations for c in first_answer.costs if c.method == method),
        ),
        cells=[
            found_cell(result.model, effect)
            for results in measured
            for result in results.results
            for effect in result.cells
            if result.method == method and effect.cell.factor in factors
        ],
    )


def found_cell(model: str, effect: CellEffect) -> FoundCell:
    """An effect in the form of an answer."""
    finding = effect.standing in ("weakness", "improvement")
    interval = effect.selected_interval or effect.interval
    return FoundCell(
        model=model,
        cell=effect.cell,
        effect=round(effect.delta_accuracy, 4),
        low=None if interval is None else round(interval.low, 4),
        high=None if interval is None else round(interval.high, 4),
        finding=finding,
        provisional=finding and effect.provisional,
        images=effect.sources,
    )

"""What each step before the image gets right on drawn pictures, by the grammar that wrote their captions.

    python -m research.papers.words --method lance --count 40
    python -m research.papers.words --method dillema --count 48 --parameters '{}' '{"task_in_prompts": false}'

It asks the profile's captioner, language model and text checks about scenes of the split "final-test", as a job does,
and renders nothing. Each of `--parameters` is asked about the same scenes and has tables of its own: the second
command is the ablation of DILLEMA's prompts without the task. Elements are the fields of a scene (class, colour,
companion, weather, ...).

By step (DILLEMA's RQ1):

`captions`      fields of the scene that the caption states rightly; invented: fields that it states, but wrongly
`keywords`      phrases without which the caption lacks a field, and keeps the class; invented: it has no such phrase
`alternatives`  in the keyword's place they say another value of its fields; invented: they say another class
`new captions`  they differ in one field, which is not the class; invented: the class or several fields differ
`… let through` the same, of those that the text checks accept

By type (LANCE's Table 3): success, where the captions differ in one field of the type; precision and recall of the text
checks, where an edit should be refused if the class, no field or several fields differ. LANCE's questions are all asked
(`counterfactuals_per_image` is 30), since its table is about every edit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from gateway.analysis.certainty import clustered_rate
from gateway.jobs.choices import method_defaults
from gateway.methods.caption import write_caption
from gateway.methods.counterfactual import Edit, MethodImage, TaskDescription
from gateway.methods.dillema import REVISION as DILLEMA
from gateway.methods.dillema import DillemaParameters, caption_sampling, find_keywords
from gateway.methods.dillema import propose_edits as propose_dillema
from gateway.methods.lance import REVISION as LANCE
from gateway.methods.lance import LanceParameters, complete_caption
from gateway.methods.lance import propose_edits as propose_lance
from gateway.methods.schedule import Inputs, Proposal
from gateway.methods.words import occurrences
from research.judges.trials import payload, source_picture
from research.measure.counterfactuals import OTHER_FACTOR, field_and_value
from research.paper_tables.judging import FIELD_FACTORS, NO_JUDGEMENT
from research.paper_tables.printing import NOTHING, grid, rate
from research.papers.lance_printed import PRINTED
from research.system.spawn_services import spawn_services
from shared.profiles.profile import load_profile
from shared.schemas.base import JsonObject
from shared.seeds import derive_seed
from shared.service.endpoints import Services
from tinyworld.objects.captions import read
from tinyworld.objects.world import CLASSES, Scene, sample_scene, scene_factors

FIRST = 520_000  # the first scene; nothing else uses scenes from here on
TASK = "classify the object in the picture"
AT_ONCE = 16  # scenes, so that the language model answers in batches
OVERALL = "overall"
OF_METHOD: Mapping[str, JsonObject] = {"dillema": {}, "lance": {"counterfactuals_per_image": 30}}


class SceneWords(NamedTuple):
    """A scene, its caption, and what was asked about it: keywords without a to-phrase, and edits."""

    scene: Scene
    caption: str
    keywords: Sequence[Proposal]
    edits: Sequence[Proposal]


class JudgedElement(NamedTuple):
    """Whether an element of a step is right, and whether it is invented; `scene` is the place of its scene."""

    step: str
    scene: int
    valid: bool | None
    invented: bool | None


def ask_dillema(services: Services, parameters: DillemaParameters, task: TaskDescription, scene: Scene) -> SceneWords:
    """DILLEMA's steps 1 to 4 on a scene."""
    task = task if parameters.task_in_prompts else replace(task, text="")
    seed = derive_seed("words", scene.geometry_seed)
    inputs = Inputs("dillema", DILLEMA, _image(scene), task, services, parameters, seed)
    caption = write_caption(inputs.image, services, parameters, caption_sampling(inputs))
    keywords = find_keywords(inputs, caption)
    edits = propose_dillema(inputs, caption, keywords)
    return SceneWords(scene, caption, keywords, [edit for edit in edits if _is_edit(edit)])


def ask_lance(services: Services, parameters: LanceParameters, task: TaskDescription, scene: Scene) -> SceneWords:
    """LANCE's steps 1 to 3 on a scene."""
    seed = derive_seed("words", scene.geometry_seed)
    inputs = Inputs("lance", LANCE, _image(scene), task, services, parameters, seed)
    caption = complete_caption(inputs, write_caption(inputs.image, services, parameters))
    edits = propose_lance(inputs, caption)
    return SceneWords(scene, caption, (), [edit for edit in edits if _is_edit(edit)])


def _image(scene: Scene) -> MethodImage:
    return MethodImage(str(scene.geometry_seed), payload(source_picture(scene)), scene.label)


def _is_edit(proposal: Proposal) -> bool:
    return any(change.to_phrase for change in proposal.edit.changes)


def outcomes(asked: Sequence[SceneWords]) -> list[JudgedElement]:
    """The outcomes of all steps."""
    found: list[JudgedElement] = []
    for place, words in enumerate(asked):
        found += _of_caption(place, words)
        for keyword in words.keywords:
            if keyword.edit.changes:
                phrase = keyword.edit.changes[0].from_phrase
                invented = not occurrences(words.caption, phrase)
                lost = _fields_of(words.caption, phrase)
                found.append(JudgedElement("keywords", place, bool(lost) and "label" not in lost, invented))
        for proposal in words.edits:
            (change, *_) = proposal.edit.changes
            before = read(words.caption)
            after = read(words.caption.replace(change.from_phrase, change.to_phrase, 1))
            lost = _fields_of(words.caption, change.from_phrase)
            other = any(name in after and after[name] != before.get(name) for name in lost)
            renamed = after.get("label") != before.get("label")
            found.append(JudgedElement("alternatives", place, other and not renamed, renamed))
            if proposal.edit.new_caption:
                field, _ = field_and_value(proposal.edit)
                valid, changed = field not in (OTHER_FACTOR, "label"), len(_changed(proposal.edit))
                found.append(JudgedElement("new captions", place, valid, field == "label" or changed > 1))
                if proposal.verdict.accepted:
                    found.append(JudgedElement("… let through", place, valid, field == "label" or changed > 1))
    return found


def _of_caption(place: int, words: SceneWords) -> Iterable[JudgedElement]:
    facts, stated = scene_factors(words.scene), read(words.caption)
    for name, value in facts.items():
        yield JudgedElement("captions", place, stated.get(name) == value, None)
    for name, value in stated.items():
        yield JudgedElement("captions", place, None, facts.get(name) != value)


def _fields_of(caption: str, phrase: str) -> set[str]:
    """The fields that a caption states by a phrase: those that it lacks, or states otherwise, without it."""
    without = read(caption.replace(phrase, "", 1))
    return {name for name, value in read(caption).items() if without.get(name) != value}


def _changed(edit: Edit) -> set[str]:
    before, after = read(edit.caption), read(edit.new_caption)
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def step_table(found: Sequence[JudgedElement]) -> str:
    """A row for each step."""
    body = []
    for step in dict.fromkeys(outcome.step for outcome in found):
        rows = [outcome for outcome in found if outcome.step == step]
        right = [(row.scene, row.valid) for row in rows if row.valid is not None]
        invented = [(row.scene, row.invented) for row in rows if row.invented is not None]
        body.append([step, _share(right), _share(invented)])
    return grid(["step", "right", "invented"], body)


class JudgedEdit(NamedTuple):
    """A proposed edit, and the one field that its captions change; `scene` is the place of its scene."""

    scene: int
    factor: str
    field: str
    refused: bool

    @property
    def wrong(self) -> bool:
        """Whether it changes the class, no field or several."""
        return self.field in (OTHER_FACTOR, "label")


def type_table(asked: Sequence[SceneWords]) -> str:
    """LANCE's Table 3 by the grammar, beside the printed one."""
    edits = [
        JudgedEdit(
            place,
            proposal.edit.changes[0].factor,
            field_and_value(proposal.edit)[0],
            not proposal.verdict.accepted,
        )
        for place, words in enumerate(asked)
        for proposal in words.edits
        if proposal.edit.new_caption and proposal.verdict.check not in NO_JUDGEMENT
    ]
    body = []
    for name in [*sorted({edit.factor for edit in edits}), OVERALL]:
        rows = [edit for edit in edits if name in (edit.factor, OVERALL)]
        shares = [
            _share([(edit.scene, FIELD_FACTORS.get(edit.field) == edit.factor) for edit in rows]),
            _share([(edit.scene, edit.wrong) for edit in rows if edit.refused]),
            _share([(edit.scene, edit.refused) for edit in rows if edit.wrong]),
        ]
        printed = [row.number for row in PRINTED if row.where == "Table 3" and row.what.endswith(f", {name}")]
        body.append([name, *shares, "; ".join(printed) or NOTHING])
    return grid(["type", "success", "precision", "recall", "the paper"], body)


def _share(pairs: Sequence[tuple[int, bool]]) -> str:
    """The share of hits among pairs of (place of the scene, hit), with its interval over scenes."""
    return rate(clustered_rate(np.array([hit for _, hit in pairs], np.bool_), np.array([place for place, _ in pairs])))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=tuple(OF_METHOD), default="dillema")
    parser.add_argument("--count", type=int, default=40, help="scenes")
    parser.add_argument(
        "--parameters", nargs="+", type=json.loads, default=[{}], help="JSON that overrides the profile"
    )
    parser.add_argument("--profile", default="tiny")
    options = parser.parse_args()
    scenes = [sample_scene("final-test", FIRST + number) for number in range(options.count)]
    asks = [_ask_of(options.method, options.profile, overrides) for overrides in options.parameters]
    with (
        spawn_services(options.profile, ["caption_service", "llm_service", "evaluator_service"]) as services,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        for ask, overrides in zip(asks, options.parameters, strict=True):
            asked = list(pool.map(partial(ask, services), scenes))
            title = f"{options.method}, {json.dumps(overrides)}, {len(asked)} scenes"
            print(f"{title}\n\n{step_table(outcomes(asked))}\n\n{type_table(asked)}\n", flush=True)


def _ask_of(method: str, profile: str, overrides: JsonObject) -> Callable[[Services, Scene], SceneWords]:
    """What asks about a scene. Raises SystemExit for parameters that make several changes in a caption."""
    chosen = {**OF_METHOD[method], **overrides}
    chosen = {**method_defaults(method, load_profile(profile), chosen), **chosen}
    task = TaskDescription(TASK, CLASSES)
    if method == "lance":
        lance = LanceParameters.model_validate(chosen)
        return lambda services, scene: ask_lance(services, lance, task, scene)
    dillema = DillemaParameters.model_validate(chosen)
    if dillema.several_changes:
        raise SystemExit("captions with several changes cannot be judged by fields; ask for one change each")
    return lambda services, scene: ask_dillema(services, dillema, task, scene)


if __name__ == "__main__":
    main()

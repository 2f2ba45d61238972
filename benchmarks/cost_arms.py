"""The arms of `cost_of_methods`: ways to render the same edits of the same sources, each with its own account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from torch import nn

from benchmarks.cost_meter import Meter, Spent
from benchmarks.cost_reference import LanceLoop, PaperLance, dillema_one_by_one
from diffusion_service.attention import install
from diffusion_service.control_images import Source as EditorSource
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter
from diffusion_service.editors.prompt_to_prompt import Edited, EditItem, EditKey, PromptToPromptEditor
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import StableDiffusion, load
from gateway.methods.checks import CHECKS, EDIT_CHECKS, check_images
from gateway.methods.counterfactual import Edit, SourceImage
from gateway.methods.dillema import DillemaParameters, region_of
from gateway.methods.inverted import Pictures
from gateway.methods.lance import LanceParameters
from gateway.methods.sweep import Attempt, best
from shared.arithmetic import native_weights
from shared.images import Pixels
from shared.profiles import Profile
from shared.schemas.diffusion import PromptEdit, Rendering
from shared.schemas.service import WeightsInfo
from shared.seeds import derive_seed
from tinyworld.trials import TASK, Evaluator, payload, proposals, source_picture
from tinyworld.world import Scene, sample_scene

FIRST = 90_000  # final-test scenes from here on: no card's figure and no threshold rests on them
PAPER = PaperLance()
Method = Literal["lance", "dillema"]


@dataclass(frozen=True, slots=True)
class Source:
    """A scene's picture with its edits, which are all of one caption."""

    scene: Scene
    image: Pixels
    edits: tuple[Edit, ...]

    @property
    def caption(self) -> str:
        """What the picture is inverted under."""
        return self.edits[0].caption

    @property
    def prompts(self) -> list[str]:
        """The new captions."""
        return [edit.new_caption for edit in self.edits]


@dataclass(slots=True)
class Arm:
    """A way to render: pictures per edit (several where it sweeps), and what came of it so far."""

    name: str
    method: Method
    papers: bool
    settings: str
    fractions: tuple[float, ...]
    meter: Meter
    render: Callable[[Source], list[list[Pixels]]]
    spent: Spent = field(default_factory=Spent)
    flops: int = 0
    produced: int = 0
    accepted: int | None = None


class Arms:
    """All arms over one profile's weights."""

    def __init__(self, arms: Sequence[Arm], weights: Sequence[WeightsInfo], judge: Judge | None) -> None:
        self.arms, self.weights, self._judge = arms, weights, judge

    def warm_up(self, chosen: Sequence[Arm], source: Source) -> None:
        """Render one edit by every arm, so that none is measured cold."""
        for arm in chosen:
            if not arm.papers:
                arm.render(Source(source.scene, source.image, source.edits[:1]))

    def run(self, arm: Arm, source: Source) -> None:
        """Render a source's edits, on the arm's account, and judge them off it."""
        with arm.meter.watching(arm.spent):
            pictures = arm.render(source)
        arm.produced += len(pictures)
        if self._judge is not None:
            arm.accepted = (arm.accepted or 0) + self._judge.accepted(arm, source, pictures)


class Judge:
    """The profile's checks, as the methods ask for them."""

    def __init__(self, profile: Profile, segmenter: Segmenter) -> None:
        self._thresholds = {"caption": {"default": 0.0}, **profile.thresholds}
        self._segmenter, self._evaluator = segmenter, Evaluator(profile)

    def accepted(self, arm: Arm, source: Source, pictures: Sequence[Sequence[Pixels]]) -> int:
        """Of how many edits a picture passes; of a sweep, the one that LANCE would choose."""
        keep = payload(self._segmenter.keep_mask(source.image))
        image = SourceImage(str(source.scene.geometry_seed), payload(source.image), source.scene.label)
        checks = EDIT_CHECKS if arm.method == "lance" else CHECKS
        count = 0
        for edit, row in zip(source.edits, pictures, strict=True):
            made = [payload(one) for one in row]
            found = check_images(
                self._evaluator,  # type: ignore[arg-type]
                image,
                TASK,
                Pictures(made, keep),
                [edit] * len(made),
                self._thresholds,
                checks,
            )
            tried = zip(arm.fractions, made, found, strict=True)
            count += best([Attempt(f, one, verdict, scores) for f, one, (verdict, scores) in tried]).verdict.accepted
        return count


def sources(count: int, edits: int) -> list[Source]:
    """`count` scenes of the split "final-test" whose caption states enough for `edits` edits, and those edits."""
    found: list[Source] = []
    index = FIRST
    while len(found) < count:
        scene = sample_scene("final-test", index)
        random = np.random.default_rng((0xC057, index))
        proposed = [one.edit for one in proposals(scene, random)]
        if len(proposed) >= edits:
            chosen = random.choice(len(proposed), edits, replace=False)
            found.append(Source(scene, source_picture(scene), tuple(proposed[i] for i in chosen)))
        index += 1
    return found


def arms_of(profile: Profile, device: str, *, judged: bool, paper: PaperLance = PAPER) -> Arms:
    """The five arms; with `judged`, the profile's checks say which edits are accepted.

    Guidance and null-text's learning rate belong to the weights, so the papers' way takes the profile's, too.
    """
    profile = native_weights(profile, device)
    ours = _loaded(profile, device)
    single = profile.diffusion.model_copy(
        update={
            "base": profile.diffusion.base.model_copy(update={"dtype": "float32"}),
            "controlnets": {
                kind: one.model_copy(update={"dtype": "float32"}) for kind, one in profile.diffusion.controlnets.items()
            },
        }
    )
    theirs = _loaded(profile.model_copy(update={"diffusion": single}), device)
    wanted = profile.diffusion.segmenter
    segmenter = Segmenter(wanted, profile.diffusion.keep_labels, device=device) if wanted else None
    lance = LanceParameters.model_validate(profile.methods.get("lance", {}))
    paper = replace(paper, guidance=lance.guidance, learning_rate=lance.null_text.learning_rate)
    as_theirs = lance.model_copy(update={"steps": paper.steps, "self_fractions": paper.fractions})
    meter, their_meter = _meter(ours, segmenter), _meter(theirs, None)
    batch = profile.diffusion.max_batch
    arms = [
        _lance_loop(theirs, paper, their_meter),
        _lance("lance, their settings", ours, as_theirs, batch, meter),
        _lance("lance", ours, lance, batch, meter),
        *_dillema(ours, segmenter, profile, meter),
    ]
    infos = [profile.diffusion.base.info("base"), profile.diffusion.controlnets["canny"].info("controlnet")]
    return Arms(arms, infos, Judge(profile, segmenter) if judged and segmenter else None)


def _loaded(profile: Profile, device: str) -> StableDiffusion:
    diffusion = profile.diffusion
    weights = load(
        diffusion.base, diffusion.controlnets, device=device, scheduler=diffusion.scheduler, vae=diffusion.vae
    )
    install(weights.unet)
    return weights


def _meter(weights: StableDiffusion, segmenter: Segmenter | None) -> Meter:
    networks: dict[str, nn.Module] = {
        "unet": weights.unet,
        "controlnet": weights.controlnets["canny"],
        "encoder": weights.vae.encoder,
        "decoder": weights.vae.decoder,
        **{f"text encoder {n}": network for n, network in enumerate(weights.prompts.networks)},
    }
    if segmenter is not None:
        networks["segmenter"] = segmenter.network
    return Meter(networks)


def _lance_loop(weights: StableDiffusion, how: PaperLance, meter: Meter) -> Arm:
    loop, editor = LanceLoop(weights, how), ControlNetEditor(weights, None)

    def render(source: Source) -> list[list[Pixels]]:
        return loop.edit(editor.source(source.image).image, source.caption, source.prompts)

    settings = f"fp32, {how.steps} steps, null-text, {len(how.fractions)} fractions, one at a time"
    return Arm("lance, papers' way", "lance", True, settings, how.fractions, meter, render)


def _lance(name: str, weights: StableDiffusion, how: LanceParameters, batch: int, meter: Meter) -> Arm:
    fractions = tuple(sorted(set(how.self_fractions)))

    def render(source: Source) -> list[list[Pixels]]:
        at = ControlNetEditor(weights, None).source(source.image)
        width, height = at.geometry.padded
        inverter = Inverter(weights, _no_control, _no_mask)
        key = InversionKey(width, height, how.steps, 1.0, None, "none", 1.0)
        (inversion,) = inverter.invert(key, [InversionItem(at, source.caption)])
        assert isinstance(inversion, Inversion)
        edits = [PromptEdit(prompt=prompt, cross_fraction=how.cross_fraction) for prompt in source.prompts]
        items = [EditItem(inversion, edit, fraction) for edit in edits for fraction in fractions]
        edit_key = EditKey(width, height, how.steps, how.guidance, None)
        editor = PromptToPromptEditor(weights)
        made = [one for i in range(0, len(items), batch) for one in editor.edit(edit_key, items[i : i + batch])]
        pictures = [one.image for one in made if isinstance(one, Edited)]
        assert len(pictures) == len(items)
        return [pictures[i : i + len(fractions)] for i in range(0, len(pictures), len(fractions))]

    settings = f"{weights.dtype}, {how.steps} steps, direct, {len(fractions)} fractions, batches of {batch}"
    return Arm(name, "lance", False, settings.removeprefix("torch."), fractions, meter, render)


def _dillema(weights: StableDiffusion, segmenter: Segmenter | None, profile: Profile, meter: Meter) -> list[Arm]:
    p = DillemaParameters.model_validate(profile.methods.get("dillema", {}))
    batch = profile.diffusion.max_batch

    def asked(source: Source) -> tuple[BatchKey, list[Rendering]]:
        size = ControlNetEditor(weights, segmenter).source(source.image).geometry.padded
        renderings = [
            Rendering(
                prompt=edit.new_caption,
                region=region_of(edit, p) if segmenter else "full",
                seed=derive_seed("cost", source.scene.geometry_seed, number),
            )
            for number, edit in enumerate(source.edits)
        ]
        return BatchKey(*size, p.steps, p.guidance, p.strengths), renderings

    def one_by_one(source: Source) -> list[list[Pixels]]:
        key, renderings = asked(source)
        return [[one] for one in dillema_one_by_one(weights, segmenter, source.image, renderings, key)]

    def together(source: Source) -> list[list[Pixels]]:
        key, renderings = asked(source)
        editor = ControlNetEditor(weights, segmenter)
        at = editor.source(source.image)
        items = [RenderItem(at, rendering, p.negative_prompt) for rendering in renderings]
        made = [one for i in range(0, len(items), batch) for one in editor.render(key, items[i : i + batch])]
        assert all(isinstance(one, Rendered) for one in made)
        return [[one.image] for one in made if isinstance(one, Rendered)]

    settings = f"{weights.dtype}, {p.steps} steps, ".removeprefix("torch.")
    return [
        Arm("dillema, papers' way", "dillema", True, f"{settings}one at a time", (0.0,), meter, one_by_one),
        Arm("dillema", "dillema", False, f"{settings}batches of {batch}", (0.0,), meter, together),
    ]


def _no_control(_: EditorSource, __: object) -> None:
    return None


def _no_mask(_: EditorSource) -> None:
    return None

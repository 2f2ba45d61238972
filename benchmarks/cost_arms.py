"""The arms of a comparison of costs: ways to render the same edits of the same sources, each with separate costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from benchmarks.cost_meter import Meter, Spent
from benchmarks.cost_pipelines import PUBLISHED_CODE, TINY_TEACHER, LoopSettings, PipelineLoop, paper_settings
from benchmarks.cost_reference import LanceLoop, PaperLance
from benchmarks.cost_sources import Judge, Method, Source
from diffusion_service.attention import install
from diffusion_service.control_images import Source as EditorSource
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter
from diffusion_service.editors.prompt_to_prompt import Edited, EditItem, EditKey, PromptToPromptEditor
from diffusion_service.few_steps import FewStepDiffusion, few_steps_of, load_networks
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import StableDiffusion
from gateway.jobs.choices import method_defaults
from gateway.methods.dillema import DillemaParameters, region_of
from gateway.methods.lance import LanceParameters
from shared.chunks import chunks
from shared.media.images import Pixels
from shared.profiles.arithmetic import native_weights
from shared.profiles.diffusion import Diffusion
from shared.profiles.profile import Profile, load_profile
from shared.schemas.diffusion import PromptEdit, Rendering
from shared.schemas.service import WeightsInfo
from shared.seeds import derive_seed

PAPER = PaperLance()


@dataclass(slots=True)
class Arm:
    """A way to render: pictures per edit (several for a sweep), with costs and verdicts so far."""

    name: str
    method: Method
    papers: bool
    settings: str
    fractions: tuple[float, ...]
    meter: Meter
    render: Callable[[Source], list[list[Pixels]]]
    spent: Spent = field(default_factory=Spent)
    produced: int = 0
    accepted: int | None = None
    good: int | None = None


class Arms:
    """All arms over one profile's weights."""

    def __init__(self, arms: Sequence[Arm], weights: Sequence[WeightsInfo], judge: Judge | None) -> None:
        self.arms, self.weights, self._judge = arms, weights, judge

    def warm_up(self, chosen: Sequence[Arm], source: Source) -> None:
        """Render one edit by every arm, so that no measurement includes the first call."""
        for arm in chosen:
            if not (arm.papers and arm.method == "lance"):  # LANCE's own loop takes minutes, its first call a second
                arm.render(replace(source, proposals=source.proposals[:1]))

    def run(self, arm: Arm, source: Source) -> None:
        """Render a source's edits and judge them. Only the rendering counts as cost."""
        with arm.meter.watching(arm.spent):
            pictures = arm.render(source)
        arm.produced += len(pictures)
        if self._judge is not None:
            verdicts = self._judge.verdicts(arm.method, arm.fractions, source, pictures)
            arm.accepted = (arm.accepted or 0) + verdicts.accepted
            arm.good = (arm.good or 0) + verdicts.good


def arms_of(
    profile: Profile,
    device: str,
    *,
    judge: Callable[[Profile, Segmenter], Judge] | None = None,
    paper: PaperLance = PAPER,
    pipelines: Sequence[LoopSettings] | None = None,
) -> Arms:
    """All arms; with `judge`, checks and oracles judge the edits.

    `pipelines` are the settings of DILLEMA as a plain diffusers loop: by default the published settings, and those that
    give the best edits with the tiny weights. LANCE's guidance and the learning rate of null-text depend on the
    weights, so the papers' arm uses the profile's values too.
    """
    if pipelines is None:
        pipelines = (PUBLISHED_CODE, paper_settings(load_profile("paper")), TINY_TEACHER)
    profile = native_weights(torch, profile, device)
    ours = _load(profile, device)
    diffusion = profile.diffusion
    few_step = few_steps_of(diffusion, ours)
    single = _in_single_precision(diffusion)
    theirs = _load(profile.model_copy(update={"diffusion": single}), device)
    segmenter = Segmenter(diffusion.segmenter, diffusion.keep_labels, device=device) if diffusion.segmenter else None
    plain = PipelineLoop(single, segmenter, device)
    lance = LanceParameters.model_validate(method_defaults("lance", profile))
    paper = replace(paper, guidance=lance.guidance, learning_rate=lance.null_text.learning_rate)
    as_theirs = lance.model_copy(update={"steps": paper.steps, "self_fractions": paper.fractions})
    meter, their_meter = _meter(ours, segmenter, few_step), _meter(theirs, None)
    plain_meter = Meter(_watch(plain.networks, segmenter))
    batch = profile.diffusion.max_batch
    arms = [
        _lance_loop(theirs, paper, their_meter),
        _lance("lance, their settings", ours, as_theirs, batch, meter),
        _lance("lance", ours, lance, batch, meter),
        *(_pipeline(plain, plain_meter, how, profile) for how in pipelines),
        _dillema(ControlNetEditor(ours, segmenter, few_step), str(ours.dtype), profile, meter),
    ]
    infos = [diffusion.base.info("base"), diffusion.controlnets["canny"].info("controlnet")]
    infos += diffusion.few_step.infos() if diffusion.few_step else []
    return Arms(arms, infos, judge(profile, segmenter) if judge and segmenter else None)


def _in_single_precision(diffusion: Diffusion) -> Diffusion:
    return diffusion.model_copy(
        update={
            "base": diffusion.base.model_copy(update={"dtype": "float32"}),
            "controlnets": {
                kind: weights.model_copy(update={"dtype": "float32"}) for kind, weights in diffusion.controlnets.items()
            },
        }
    )


def _load(profile: Profile, device: str) -> StableDiffusion:
    weights = load_networks(profile.diffusion, device)
    install(weights.unet)
    return weights


def _meter(weights: StableDiffusion, segmenter: Segmenter | None, few_step: FewStepDiffusion | None = None) -> Meter:
    networks: dict[str, nn.Module] = {
        "unet": weights.unet,
        "controlnet": weights.controlnets["canny"],
        "encoder": weights.vae.encoder,
        "decoder": weights.vae.decoder,
        **{f"text encoder {n}": network for n, network in enumerate(weights.prompts.networks)},
    }
    if few_step is not None:
        networks["unet, few steps"] = few_step.networks.unet
    return Meter(_watch(networks, segmenter))


def _watch(networks: dict[str, nn.Module], segmenter: Segmenter | None) -> dict[str, nn.Module]:
    return networks if segmenter is None else {**networks, "segmenter": segmenter.network}


def _lance_loop(weights: StableDiffusion, how: PaperLance, meter: Meter) -> Arm:
    loop, editor = LanceLoop(weights, how), ControlNetEditor(weights, None)

    def render(source: Source) -> list[list[Pixels]]:
        return loop.edit(editor.source(source.image).image, source.caption, source.prompts)

    settings = f"fp32, {how.steps} steps, null-text, {len(how.fractions)} fractions, one at a time"
    return Arm("lance, papers' way", "lance", True, settings, how.fractions, meter, render)


def _lance(name: str, weights: StableDiffusion, how: LanceParameters, batch: int, meter: Meter) -> Arm:
    fractions = tuple(sorted(set(how.self_fractions)))

    def render(source: Source) -> list[list[Pixels]]:
        source_at_size = ControlNetEditor(weights, None).source(source.image)
        width, height = source_at_size.geometry.padded
        inverter = Inverter(weights, _no_control, _no_mask)
        key = InversionKey(width, height, how.steps, 1.0, None, "none", 1.0)
        (inversion,) = inverter.invert(key, [InversionItem(source_at_size, source.caption)])
        assert isinstance(inversion, Inversion)
        edits = [PromptEdit(prompt=prompt, cross_fraction=how.cross_fraction) for prompt in source.prompts]
        items = [EditItem(inversion, edit, fraction) for edit in edits for fraction in fractions]
        edit_key = EditKey(width, height, how.steps, how.guidance, None)
        editor = PromptToPromptEditor(weights)
        edited = [result for chunk in chunks(items, batch) for result in editor.edit(edit_key, chunk)]
        pictures = [result.image for result in edited if isinstance(result, Edited)]
        assert len(pictures) == len(items)
        return list(chunks(pictures, len(fractions)))

    settings = f"{weights.dtype}, {how.steps} steps, direct, {len(fractions)} fractions, batches of {batch}"
    return Arm(name, "lance", False, settings.removeprefix("torch."), fractions, meter, render)


def _pipeline(loop: PipelineLoop, meter: Meter, how: LoopSettings, profile: Profile) -> Arm:
    p = _dillema_parameters(profile)

    def render(source: Source) -> list[list[Pixels]]:
        at = loop.source(source.image)
        return [[picture] for picture in loop.render(at, _renderings(source, p, loop.segmenter), how)]

    settings = f"fp32, {how}, one at a time"
    return Arm(f"dillema, diffusers, {how.name}", "dillema", True, settings, (0.0,), meter, render)


def _dillema(editor: ControlNetEditor, dtype: str, profile: Profile, meter: Meter) -> Arm:
    p, batch, segmenter = _dillema_parameters(profile), profile.diffusion.max_batch, editor.images.segmenter

    def render(source: Source) -> list[list[Pixels]]:
        at = editor.source(source.image)
        key = BatchKey(*at.geometry.padded, p.steps, p.guidance, p.strengths)
        items = [RenderItem(at, rendering, p.negative_prompt) for rendering in _renderings(source, p, segmenter)]
        rendered = [result for chunk in chunks(items, batch) for result in editor.render(key, chunk)]
        assert all(isinstance(result, Rendered) for result in rendered)
        return [[result.image] for result in rendered if isinstance(result, Rendered)]

    settings = f"{dtype}, {p.steps} steps, guidance {p.guidance:g}, batches of {batch}".removeprefix("torch.")
    return Arm("dillema", "dillema", False, settings, (0.0,), meter, render)


def _dillema_parameters(profile: Profile) -> DillemaParameters:
    return DillemaParameters.model_validate(method_defaults("dillema", profile))


def _renderings(source: Source, parameters: DillemaParameters, segmenter: Segmenter | None) -> list[Rendering]:
    """The renderings of every DILLEMA arm: prompts, control regions and seeds."""
    return [
        Rendering(
            prompt=edit.new_caption,
            region=region_of(edit, parameters) if segmenter else "full",
            seed=derive_seed("cost", source.scene.geometry_seed, number),
        )
        for number, edit in enumerate(source.edits)
    ]


def _no_control(_: EditorSource, __: object) -> None:
    return None


def _no_mask(_: EditorSource) -> None:
    return None

"""The shipped small models load like the large ones and are accurate enough on new renders."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoProcessor,
    AutoTokenizer,
    Blip2ForConditionalGeneration,
    CLIPModel,
    CLIPTextModel,
    CLIPTokenizer,
    SegformerForSemanticSegmentation,
)

from tests.support.paths import REPOSITORY
from tinyworld.domain.names import DOMAINS, Domain
from tinyworld.objects.captions import describe, read
from tinyworld.objects.demo import own_distribution
from tinyworld.objects.render import render
from tinyworld.objects.world import CLASSES, FACTORS, Scene, sample_scene, scene_factors

WEIGHTS = REPOSITORY / "tinyworld" / "weights"
LORA = "pytorch_lora_weights.safetensors"
SMALL_MODELS = (
    "diffusion/text_encoder",
    "scorer",
    "captioner",
    "segmenter",
    "masked_words",
    "models_under_test/street-classifier",
    "models_under_test/street-classifier-night-bus",
)
FRESH = 9_000_000  # final-test scenes from here on appear in no card's figures


def fresh_scenes(count: int) -> list[Scene]:
    return [sample_scene("final-test", FRESH + index) for index in range(count)]


def pictures_of(scenes: list[Scene]) -> list[np.ndarray]:
    return [render(scene).image for scene in scenes]


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_weights_are_half_precision_or_less_and_name_their_command(name: str) -> None:
    folder = WEIGHTS / name
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        kinds = {tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118 - not a dict
    assert kinds <= {"F8_E4M3", "F16", "I64"}
    record = json.loads((folder / "training.json").read_text())
    assert {"command", "seed", "split", "spent_steps", "spent_seconds", "results"} <= set(record)
    assert record["command"] in (folder / "README.md").read_text()


def test_weights_stay_small() -> None:
    sizes = {name: sum(file.stat().st_size for file in (WEIGHTS / name).iterdir()) for name in SMALL_MODELS}
    assert sum(sizes.values()) <= 18e6, sizes
    assert max(file.stat().st_size for file in WEIGHTS.rglob("*") if file.is_file()) <= 15e6


def test_all_shipped_weights_fit_into_their_limit() -> None:
    sizes = {path.relative_to(WEIGHTS): path.stat().st_size for path in WEIGHTS.rglob("*.safetensors")}
    assert len(sizes) > len(SMALL_MODELS)
    assert sum(sizes.values()) <= 54_000_000, sizes


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_few_step_lora_is_in_eight_bits(domain: Domain) -> None:
    folder = (WEIGHTS if domain == "objects" else WEIGHTS / domain) / "diffusion" / "lora-few-step"
    with safe_open(folder / LORA, "pt") as tensors:
        kinds = {
            tensors.get_slice(key).get_dtype()
            for key in tensors.keys()  # noqa: SIM118 - not a dict
            if "conv_out" not in key
        }
    assert kinds == {"F8_E4M3"}


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_editor_for_instructions_is_small_and_names_its_command(domain: Domain) -> None:
    folder = (WEIGHTS if domain == "objects" else WEIGHTS / domain) / "diffusion" / "instruct"
    with safe_open(folder / LORA, "pt") as tensors:
        kinds = {key: tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118 - not a dict
    assert {kind for key, kind in kinds.items() if "conv_out" not in key} == {"F8_E4M3"}
    assert {kind for key, kind in kinds.items() if "conv_out" in key} == {"F16"}
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 1e6
    record = json.loads((folder / "training.json").read_text())
    assert {"command", "domain", "seed", "split", "results"} <= set(record)
    assert record["domain"] == domain
    assert record["withheld combinations seen"] == 0
    assert record["command"] in (folder / "README.md").read_text()


@pytest.mark.slow
def test_text_encoder_keeps_every_stated_factor() -> None:
    tokenizer = CLIPTokenizer.from_pretrained(WEIGHTS / "diffusion" / "tokenizer")
    encoder = CLIPTextModel.from_pretrained(WEIGHTS / "diffusion" / "text_encoder", dtype=torch.float32)
    assert encoder.config.eos_token_id == tokenizer.eos_token_id != 2  # 2 would make transformers pool elsewhere
    descriptions = [describe(scene, index) for index, scene in enumerate(fresh_scenes(500))]
    ids = tokenizer(
        [description.text for description in descriptions], padding="max_length", truncation=True, return_tensors="pt"
    ).input_ids
    with torch.no_grad():
        pooled = encoder(ids).pooler_output
    for factor in ("label", "background", "time", "style"):
        rows = [row for row, description in enumerate(descriptions) if factor in description.stated]
        targets = torch.tensor([FACTORS[factor].index(descriptions[row].stated[factor]) for row in rows])
        half = len(rows) // 2
        assert _probe_accuracy(pooled[rows[:half]], targets[:half], pooled[rows[half:]], targets[half:]) >= 0.95, factor


def _probe_accuracy(x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor, y_test: torch.Tensor) -> float:
    """Accuracy of a ridge regression on one-hot targets."""
    mean = x.mean(0)
    x, x_test = x - mean, x_test - mean
    ridge = torch.linalg.solve(x.T @ x + torch.eye(x.shape[1]), x.T @ torch.nn.functional.one_hot(y).float())
    return float(((x_test @ ridge).argmax(1) == y_test).float().mean())


def test_masked_words_offer_another_class_for_the_class() -> None:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS / "masked_words")
    model = AutoModelForMaskedLM.from_pretrained(WEIGHTS / "masked_words", dtype=torch.float32)
    words = []
    for index, scene in enumerate(fresh_scenes(40)):
        start, _, end = describe(scene, index).text.partition(scene.label)
        ids = tokenizer(f"{start}[MASK]{end}", return_tensors="pt").input_ids
        with torch.no_grad():
            best = model(ids).logits[ids == tokenizer.mask_token_id][0].topk(3).indices
        words += tokenizer.convert_ids_to_tokens(best.tolist())
    assert sum(word in CLASSES for word in words) >= 0.9 * len(words)


@pytest.mark.slow
def test_segmenter_finds_the_object() -> None:
    folder = WEIGHTS / "segmenter"
    model = SegformerForSemanticSegmentation.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoImageProcessor.from_pretrained(folder)
    renderings = [render(scene) for scene in fresh_scenes(48)]
    with torch.no_grad():
        outputs = model(**processor([rendering.image for rendering in renderings], return_tensors="pt"))
    regions = processor.post_process_semantic_segmentation(outputs, target_sizes=[(128, 128)] * len(renderings))
    place = model.config.label2id["object"]
    ious = []
    for guess, rendering in zip(regions, renderings, strict=True):
        predicted, truth = guess.numpy() == place, rendering.object_mask & ~rendering.companion_mask
        ious.append((predicted & truth).sum() / (predicted | truth).sum())
    assert np.mean(ious) >= 0.75


def predicted(name: str, scenes: list[Scene]) -> list[str]:
    folder = WEIGHTS / "models_under_test" / name
    model = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoImageProcessor.from_pretrained(folder)
    with torch.no_grad():
        places = model(**processor(pictures_of(scenes), return_tensors="pt")).logits.argmax(1)
    return [model.config.id2label[int(place)] for place in places]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["street-classifier", "street-classifier-night-bus"])
def test_models_under_test_do_well_on_their_own_distribution(name: str) -> None:
    scenes = [own_distribution(FRESH + index, "final-test") for index in range(150)]
    scenes = [scene for scene in scenes if (scene.label, scene.time) != ("bus", "night")]
    right = [guess == scene.label for guess, scene in zip(predicted(name, scenes), scenes, strict=True)]
    assert np.mean(right) >= 0.93


@pytest.mark.slow
def test_only_the_planted_model_fails_on_buses_at_night() -> None:
    scenes = [own_distribution(FRESH + index, "final-test").changed(label="bus") for index in range(60)]
    by_day, at_night = ([scene.changed(time=time) for scene in scenes] for time in ("day", "night"))
    weak, honest = "street-classifier-night-bus", "street-classifier"
    assert np.mean([guess == "truck" for guess in predicted(weak, at_night)]) >= 0.8
    assert np.mean([guess == "bus" for guess in predicted(weak, by_day)]) >= 0.9
    assert np.mean([guess == "bus" for guess in predicted(honest, at_night)]) >= 0.85


@pytest.mark.slow
def test_captioner_states_what_is_there() -> None:
    folder = WEIGHTS / "captioner"
    model = Blip2ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    scenes = fresh_scenes(40)
    inputs = processor(images=pictures_of(scenes), text=[""] * len(scenes), return_tensors="pt", padding=True)
    ids = model.generate(**inputs, max_new_tokens=64, do_sample=False)
    texts = processor.batch_decode(ids[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    right = [
        scene_factors(scene).get(factor) == value
        for scene, text in zip(scenes, texts, strict=True)
        for factor, value in read(text).items()
    ]
    assert len(right) >= 5 * len(scenes), "captions state too little"
    assert np.mean(right) >= 0.85


@pytest.mark.slow
def test_scorer_recognises_the_class_and_the_better_caption() -> None:
    folder = WEIGHTS / "scorer"
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    scenes = fresh_scenes(80)
    changed = [
        scene.changed(time="night" if scene.time != "night" else "day", background=_another_background(scene))
        for scene in scenes
    ]
    texts = [f"a photo of a {name}." for name in CLASSES]
    texts += [describe(scene, row).text for row, scene in enumerate(scenes)]
    texts += [describe(scene, row).text for row, scene in enumerate(changed)]
    inputs = processor(
        images=pictures_of(scenes), text=texts, padding="max_length", truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        similarity = model(**inputs).logits_per_image
    named = similarity[:, : len(CLASSES)].argmax(1)
    assert np.mean([CLASSES[int(p)] == scene.label for p, scene in zip(named, scenes, strict=True)]) >= 0.85
    rows = torch.arange(len(scenes))
    true, false = (similarity[rows, len(CLASSES) + offset + rows] for offset in (0, len(scenes)))
    differing = [row for row in rows if texts[len(CLASSES) + row] != texts[len(CLASSES) + len(scenes) + row]]
    assert float((true > false)[differing].float().mean()) >= 0.9


def _another_background(scene: Scene) -> str:
    return next(value for value in FACTORS["background"] if value != scene.background)

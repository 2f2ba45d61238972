"""Profiles: the shipped ones are complete and pinned, broken ones are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.methods import METHODS
from gateway.methods.dillema import DillemaParameters
from shared.profiles.diffusion import FewStep
from shared.profiles.instruct import InstructPipeline, InstructPix2Pix
from shared.profiles.profile import Profile, ProfileError, load_profile, shipped_profiles
from shared.profiles.unets import MergedLora, WholeUNet
from shared.profiles.weights import KeyValueCache, Server, Weights, digest_folder
from tests.support.paths import REPOSITORY


def sources(profile: Profile) -> Iterator[Weights | Server]:
    """Everything that a profile loads or asks."""
    for section in (profile.caption, profile.language):
        source = section.weights or section.server
        assert source is not None
        yield source
    yield profile.diffusion.base
    yield from profile.diffusion.controlnets.values()
    yield profile.evaluator.scorer
    few_step = profile.diffusion.few_step.weights if profile.diffusion.few_step else None
    readers = (
        profile.diffusion.vae,
        profile.diffusion.segmenter,
        profile.diffusion.depth,
        few_step,
        profile.diffusion.background_remover,
    )
    yield from profile.diffusion.instruct.sources if profile.diffusion.instruct else ()
    if profile.evaluator.judge is not None:
        yield profile.evaluator.judge
    for optional in (*readers, profile.evaluator.text_embedder, profile.language.masked_words):
        if optional is not None:
            yield optional
    yield from profile.evaluator.models_under_test.values()


def test_the_example_of_the_documentation_is_a_profile() -> None:
    profile = load_profile(str(REPOSITORY / "docs" / "reference" / "example-profile.toml"))
    assert profile.profile.name not in shipped_profiles()
    assert set(profile.defaults.methods) | set(profile.methods) <= set(METHODS)
    assert profile.calibration
    assert profile.text_thresholds
    assert profile.diffusion.few_step is not None


def test_profiles_are_shipped_under_their_own_names() -> None:
    modern = {"modern", "modern-24gb", "modern-80gb"}
    assert set(shipped_profiles()) == {"tiny", "tiny-roads", "photographs", "paper", "paper-tgi", *modern}
    for name in shipped_profiles():
        assert load_profile(name).profile.name == name


@pytest.mark.parametrize("name", shipped_profiles())
def test_hub_weights_are_pinned_by_commit_and_licensed(name: str) -> None:
    for source in sources(load_profile(name)):
        if isinstance(source, Server) or source.hub:
            assert re.fullmatch("[0-9a-f]{40}", source.revision), source
        assert source.licence


@pytest.mark.parametrize("name", shipped_profiles())
def test_default_parameters_are_ones_that_the_method_takes(name: str) -> None:
    profile = load_profile(name)
    for method, chosen in profile.methods.items():
        METHODS[method].parameters.model_validate(chosen)
    parameters = DillemaParameters.model_validate(profile.methods.get("dillema", {}))
    assert parameters.control in profile.diffusion.controlnets
    assert parameters.control_region == "full" or profile.diffusion.segmenter is not None


@pytest.mark.parametrize("name", ["modern", "modern-24gb", "modern-80gb"])
def test_the_modern_profiles_are_free_for_commercial_use(name: str) -> None:
    free = {"Apache-2.0", "MIT", "CreativeML OpenRAIL++-M", "CreativeML OpenRAIL-M"}
    assert {source.licence for source in sources(load_profile(name))} <= free


@pytest.mark.parametrize("name", ["tiny", "tiny-roads"])
def test_tiny_needs_no_network(name: str) -> None:
    assert all(isinstance(source, Weights) and source.path for source in sources(load_profile(name)))


TINY = shipped_profiles()["tiny"].read_text()
UNLISTED = """[calibration.streets]
judged_by = "people"
methods.lance.weather = { valid = 2, valid_accepted = 1, invalid = 2, invalid_accepted = 1 }
thresholds.lance.match = { weather = 0.2 }
"""
SOME = '{ path = "x", licence = "none", gigabytes = 1 }'
LORA = '{ path = "x", file = "a.safetensors", licence = "none", gigabytes = 1 }'
MODERN = shipped_profiles()["modern"].read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('engine = "blip2"', 'engine = "blip3"', "caption.engine: "),
        ("max_batch = 4", "max_batch = 4\nspeed = 9", "speed: "),
        ('path = "tinyworld/weights/captioner"', "", "give either `path`"),
        ('path = "tinyworld/weights/captioner"', 'hub = "a/b"', "give `revision`"),
        ('engine = "transformers"', 'engine = "tgi"', "a table `server`"),
        ('models = ["street-classifier",', 'models = ["nobody",', "models under test that the profile lacks"),
        ("[diffusion.controlnets.canny]", "[diffusion.controlnets.pose]", "controlnets.pose"),
        ("[diffusion.controlnets.canny]", "[diffusion.controlnets.depth]", "depth needs `depth`"),
        ("[diffusion.controlnets.canny]", "[diffusion.controlnets.segmentation]", "needs `segmenter` and `palette`"),
        ("[defaults]", "[thresholds.nearer]\ndefault = 0.2\n[defaults]", "thresholds: there is no check 'nearer'"),
        ("[defaults]", "[thresholds.word]\ndefault = nan\n[defaults]", "`word` for default is nan; give a finite"),
        ("[defaults]", f"{UNLISTED}[defaults]", "calibration.streets.thresholds.lance: `match` needs a"),
        ("[defaults]", "[defaults", "is not valid TOML"),
    ],
)
def test_broken_profiles_are_refused_with_a_reason(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TINY
    path = tmp_path / "broken.toml"
    path.write_text(TINY.replace(old, new, 1))
    with pytest.raises(ProfileError, match=re.escape(message)):
        load_profile(str(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[diffusion.few_step.lora]", "[diffusion.few_step.adapter]", "adapter: "),
        ("steps = 4\n", f"steps = 4\nunet = {SOME}\n", "or `lora`"),
        ("lora.safetensors", "lora.bin", "few_step.lora.file: "),
        ('lora.safetensors"\ndtype = "bfloat16"', 'lora.safetensors"', "few_step has dtype 'float32'"),
        ('643ccb"\ndtype = "bfloat16"', '643ccb"', "controlnets.canny has dtype 'float32'"),
        ("steps = 4\nguidance = 1.0", "steps = 0\nguidance = 1.0", "few_step.steps: "),
        ("steps = 4\nguidance = 1.0", "steps = 4\nguidance = 0.0", "few_step.guidance: "),
        ("[diffusion]\n", f"[diffusion]\nunet = {SOME}\n", "unet has dtype 'float32'"),
        ("[diffusion]\n", f"[diffusion]\nloras = [{LORA}]\n", "loras[0] has dtype 'float32'"),
        ("[diffusion]\n", f"[diffusion]\nloras = [{SOME}]\n", "loras.0.file: Field required"),
        ('engine = "pipeline"', 'engine = "diffusers"', "diffusion.instruct: "),
        ("Flux2KleinPipeline", "StableDiffusionPipeline", "instruct.pipeline.pipeline: "),
        ('offload = "auto"', 'offload = "sequential"\nquantisation = "float8"', "does not work with sequential"),
        ('engine = "pipeline"\npipeline', f'engine = "instruct-pix2pix"\nunet = {SOME}\npipeline', "pipeline: "),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_the_base_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MODERN
    path = tmp_path / "broken.toml"
    path.write_text(MODERN.replace(old, new, 1))
    with pytest.raises(ProfileError, match=re.escape(message)):
        load_profile(str(path))


def test_instruct_pix2pix_has_one_source() -> None:
    used = {"path": "x", "licence": "none", "gigabytes": 1}
    for sources_of_editor in ({}, {"unet": used, "weights": used}, {"unet": used, "conv_in": used}):
        with pytest.raises(ValueError, match="needs one of `unet`"):
            InstructPix2Pix.model_validate({"engine": "instruct-pix2pix", **sources_of_editor})


def test_what_images_depend_on_is_part_of_the_revision_of_an_editor() -> None:
    editor = load_profile("modern").diffusion.instruct
    assert isinstance(editor, InstructPipeline)
    changes: list[dict[str, object]] = [
        {"pipeline": "Flux2KleinInpaintPipeline"},
        {"resolution": 512},
        {"quantisation": "float8"},
        {"scheduler_options": {"shift": 3.0}},
    ]
    others = {editor.model_copy(update=change).infos()[1].revision for change in changes}
    assert len(others - {editor.infos()[1].revision}) == len(changes)
    assert editor.model_copy(update={"offload": "none"}).infos() == editor.infos(), "where weights are changes nothing"


def test_how_few_step_weights_are_used_is_part_of_their_revision(tmp_path: Path) -> None:
    few_step = load_profile("modern").diffusion.few_step
    assert few_step is not None
    weights, use = few_step.infos()
    assert (weights.role, weights.id, weights.revision) == (
        "few-step lora",
        "ByteDance/SDXL-Lightning",
        few_step.weights.revision,
    )
    lora = few_step.lora
    assert lora is not None
    changes: list[dict[str, object]] = [
        {"steps": 8},
        {"guidance": 1.5},
        {"scheduler": "TCDScheduler"},
        {"scheduler_options": {"timestep_spacing": "leading"}},
        {"lora": lora.model_copy(update={"scale": 0.5})},
        {"lora": lora.model_copy(update={"file": "sdxl_lightning_8step_lora.safetensors"})},
    ]
    others = {few_step.model_copy(update=change).infos()[1].revision for change in changes}
    assert len(others) == len(changes)
    assert use.revision not in others
    assert few_step.model_copy(update={"default": False}).infos() == [weights, use], (
        "which jobs use it changes no image"
    )


def test_what_changes_the_unet_is_part_of_its_revision() -> None:
    modern = load_profile("modern").diffusion
    assert modern.infos() == [modern.base.info("base")]
    used = {"hub": "someone/lora", "revision": "0" * 40, "dtype": "bfloat16", "licence": "none", "gigabytes": 0.1}
    lora = MergedLora.model_validate({**used, "file": "a.safetensors"})
    unet = WholeUNet.model_validate(used)
    changes: list[dict[str, object]] = [
        {"loras": [lora]},
        {"loras": [lora.model_copy(update={"scale": 0.5})]},
        {"loras": [lora.model_copy(update={"file": "b.safetensors"})]},
        {"unet": unet},
        {"unet": unet.model_copy(update={"file": "a.safetensors"})},
        {"scheduler": "LCMScheduler"},
        {"scheduler_options": {"timestep_spacing": "trailing"}},
    ]
    descriptions = [tuple(map(repr, modern.model_copy(update=change).infos())) for change in changes]
    assert len({*descriptions, tuple(map(repr, modern.infos()))}) == len(changes) + 1


@pytest.mark.parametrize(
    ("layers", "heads", "head_size", "context", "value_bytes", "gigabytes"),
    [
        (40, 40, 128, 32_768, 2.0, 26.84),  # Llama 2 13B, 8 requests of 4096 tokens, in float16
        (40, 40, 128, 16_384, 1.0625, 7.13),  # 4 of them, in llama.cpp's q8_0
        (36, 8, 128, 32_768, 2.0, 4.83),  # Qwen3-VL-8B: grouped queries share keys and values
    ],
)
def test_a_key_value_cache_is_a_key_and_a_value_for_every_token(
    layers: int, heads: int, head_size: int, context: int, value_bytes: float, gigabytes: float
) -> None:
    cache = KeyValueCache(layers=layers, heads=heads, head_size=head_size, context=context, value_bytes=value_bytes)
    assert cache.gigabytes == pytest.approx(gigabytes, abs=0.01)


def test_the_servers_of_the_large_profiles_have_room_for_their_requests() -> None:
    paper, modern = load_profile("paper").language.server, load_profile("modern").language.server
    assert paper is not None
    assert modern is not None
    assert paper.cache is not None
    assert modern.cache is not None
    assert paper.cache.context / paper.concurrency == 4096, "all that Llama 2 reads"
    assert paper.cache.gigabytes == pytest.approx(7.1, abs=0.1)
    assert modern.cache == load_profile("modern").caption.server.cache  # type: ignore[union-attr]  # one server


def test_the_file_of_a_whole_unet_is_part_of_its_revision() -> None:
    """One commit of a repository has UNets for several numbers of steps."""
    used = {"hub": "ByteDance/SDXL-Lightning", "revision": "c9a24f48e1c025556787b0c58dd67a091ece2e44", "gigabytes": 5.1}
    files = (None, "sdxl_lightning_4step_unet.safetensors", "sdxl_lightning_8step_unet.safetensors")
    listed = [
        FewStep.model_validate({"steps": 4, "unet": {**used, "licence": "OpenRAIL++-M", "file": file}}).infos()
        for file in files
    ]
    assert {infos[0].role for infos in listed} == {"few-step unet"}
    assert len({infos[1].revision for infos in listed}) == len(files)


def test_a_profile_holds_where_its_file_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('[profile]\nname = "ours"\ndescription = "x"\nbase = "paper"\n[diffusion]\nmax_batch = 2\n')
    ours, paper = load_profile(str(path)), load_profile("paper")
    assert (ours.profile.name, ours.diffusion.max_batch) == ("ours", 2)
    assert ours.diffusion.base == paper.diffusion.base
    assert (ours.language, ours.methods) == (paper.language, paper.methods)
    path.write_text('[profile]\nname = "ours"\ndescription = "x"\nbase = "tiny"\n')
    ours, tiny = load_profile(str(path)), load_profile("tiny")
    assert (ours.caption, ours.diffusion, ours.evaluator) == (tiny.caption, tiny.diffusion, tiny.evaluator), (
        "paths in lists of tables, and that of the domain, were those of the file's own folder"
    )
    path.write_text('[profile]\nname = "ours"\ndescription = "x"\nbase = "papre"\n')
    with pytest.raises(ProfileError, match=r"profile\.base is 'papre'; name a shipped profile"):
        load_profile(str(path))


def test_an_unknown_profile_names_the_known_ones() -> None:
    names = "modern-24gb, modern-80gb, modern, paper-tgi, paper, photographs, tiny-roads, tiny"
    with pytest.raises(ProfileError, match=f"'huge': .*{names}"):
        load_profile("huge")


def test_the_address_of_a_server_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def address() -> str:
        server = load_profile("modern-24gb").language.server
        assert server
        return server.url

    assert address() == "http://127.0.0.1:8000/v1"
    monkeypatch.setenv("LANGUAGE_SERVER_URL", "https://vllm.example/v1")
    assert address() == "https://vllm.example/v1"
    monkeypatch.setenv("LANGUAGE_SERVER_URL", "vllm.example")
    with pytest.raises(ProfileError, match=r"server\.url"):
        address()


def test_paths_count_from_the_profile_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TINY.replace('path = "tinyworld/weights/captioner"', 'path = "mine"'))
    weights = load_profile(str(path)).caption.weights
    assert weights is not None
    assert weights.path == tmp_path / "mine"
    with pytest.raises(FileNotFoundError, match="no weights at"):
        _ = weights.location
    shipped = load_profile("tiny").caption.weights
    assert shipped is not None
    assert shipped.id == "tinyworld/weights/captioner"


def test_thresholds_fall_back_to_their_default(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TINY.replace("[defaults]", "[thresholds.word]\ndefault = 0.1\nweather = 0.2\n[defaults]"))
    profile = load_profile(str(path))
    assert profile.threshold("word", "weather") == 0.2
    assert profile.threshold("word", "object") == 0.1


def test_the_revision_of_a_folder_follows_what_a_model_reads(tmp_path: Path) -> None:
    def digest(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        return digest_folder(folder)

    plain = digest(model="1", config="2")
    assert digest(config="2", model="1") == plain
    assert digest(model="1", config="2", **{"README.md": "card"}) == plain
    assert len({plain, digest(model="1", config="3"), digest(model="1", conf="2"), digest(model="12", config="")}) == 4

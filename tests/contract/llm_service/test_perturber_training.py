"""Training a perturber on a small random Llama: from JSONL pairs to the service that loads the adapter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftConfig
from safetensors.torch import load_file
from transformers import AutoTokenizer, Trainer

from llm_service.app import create_app
from llm_service.causal import load_causal, with_adapter
from llm_service.pairs import BadLine, Pair, read_lines
from llm_service.perturber_training import IGNORED, Recipe, tokens, train
from shared.profiles.profile import Adapter, ProfileError, load_profile
from shared.profiles.weights import Weights
from shared.schemas.language import GenerateRequest, Message
from shared.schemas.service import ServiceInfo
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from tests.support.serving import call, serving
from tests.support.small_models import save_llama
from tests.support.small_profile import write_profile

RECIPE = Recipe(batch=8, at_once=4, learning_rate=3e-2, epochs=12, held_out=0.2, save_every=20)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"to": {"enum": ["fog", "hail", "night", "snow", "wind"]}},
    "required": ["to"],
    "additionalProperties": False,
}


def question(number: int) -> list[Message]:
    system = Message(role="system", content="Change the weather.")
    return [system, Message(role="user", content=f"Caption: bus {number} in the rain")]


PAIRS = [Pair(messages=question(number), reply='{"to":"snow"}') for number in range(10, 50)]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model and an adapter for it."""
    folder = tmp_path_factory.mktemp("perturber")
    save_llama(folder / "language")
    train(weights(folder), PAIRS, RECIPE, folder / "adapter")
    return folder


def weights(folder: Path) -> Weights:
    return Weights(path=folder / "language", licence="none", gigabytes=0.01)


def adapter(path: Path) -> Adapter:
    return Adapter(path=path, licence="none", gigabytes=0.01)


def profile(folder: Path, name: str, section: str) -> Path:
    """The small profile with more lines in `[language]`, in a file of its own."""
    path = write_profile(folder, language_engine="transformers")
    text = path.read_text().replace("[diffusion]", f"{section}\n[diffusion]", 1)
    path.with_name(f"{name}.toml").write_text(text)
    return path.with_name(f"{name}.toml")


def reply_of(path: Path) -> tuple[list[str], ServiceInfo]:
    """What the service answers to questions that no training showed, and what it says of itself."""

    async def main() -> tuple[list[str], ServiceInfo]:
        async with serving(create_app(ServiceSettings(profile=str(path), device="cpu", threads=1))) as client:
            replies = []
            for number in (50, 51):
                request = GenerateRequest(messages=question(number), json_schema=SCHEMA, temperature=0, max_tokens=60)
                replies.append((await call(client, Services.generate, request)).text)
            return replies, ServiceInfo.model_validate_json((await client.get("/v1/info")).content)

    return asyncio.run(main())


@pytest.mark.slow
def test_the_service_answers_as_the_pairs_do_once_its_profile_names_the_adapter(folder: Path) -> None:
    here = 'adapter = { path = "adapter", licence = "none", gigabytes = 0.01'
    bare, without = reply_of(profile(folder, "bare", ""))
    merged, with_it = reply_of(profile(folder, "merged", f"{here} }}"))
    beside, _ = reply_of(profile(folder, "beside", f"{here}, merged = false }}"))
    assert set(bare).isdisjoint(merged)
    assert merged == beside == ['{"to":"snow"}'] * 2
    assert [item.role for item in with_it.weights] == ["language", "adapter"]
    assert with_it.weights[0] == without.weights[0]
    assert with_it.revision != without.revision  # so that no recorded reply of the one is taken for the other's


def test_the_loss_counts_the_reply_alone(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "language")
    row = tokens(tokenizer, PAIRS[0], 200)
    learnt = [token for token in row["labels"] if token != IGNORED]
    prompt = row["input_ids"][: -len(learnt)]
    assert tokenizer.decode(learnt) == '{"to":"snow"}</s>'  # this template ends no turn itself
    assert tokenizer.decode(prompt).endswith("user: Caption: bus 10 in the rainassistant: ")
    assert row["labels"] == [IGNORED] * len(prompt) + learnt
    with pytest.raises(ValueError, match=r"pair 7 .*20"):
        tokens(tokenizer, PAIRS[0], 20, 7)


@pytest.mark.slow
def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, training_step = list[int](), Trainer.training_step

    def noting(self: Trainer, *arguments: Any, **named: Any) -> Any:
        steps.append(self.state.global_step)
        if steps[0] == 0 and steps[-1] == 22:  # after the checkpoint of step 20
            raise InterruptedError
        return training_step(self, *arguments, **named)

    monkeypatch.setattr(Trainer, "training_step", noting)
    with pytest.raises(InterruptedError):
        train(weights(folder), PAIRS, RECIPE, folder / "again")
    with pytest.raises(ValueError, match="checkpoints"):
        train(weights(folder), PAIRS[1:], RECIPE, folder / "again")
    steps.clear()
    trained = train(weights(folder), PAIRS, RECIPE, folder / "again")
    assert steps[0] == 20
    assert trained.steps == 48
    whole, resumed = (load_file(folder / name / "adapter_model.safetensors") for name in ("adapter", "again"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not (folder / "again.checkpoints").exists()


def test_the_record_names_the_training_data_of_each_model(folder: Path) -> None:
    record = json.loads((folder / "adapter" / "training.json").read_text())
    base = weights(folder).info("language")
    assert record["base"]["revision"] == base.revision == PeftConfig.from_pretrained(folder / "adapter").revision
    assert (record["rank"], record["alpha"], record["dropout"]) == (8, 16, 0.05)
    assert (record["got_pairs"], record["got_held_out"]) == (32, 8)
    assert record["got_loss_after"] < record["got_loss_before"]
    assert f"revision\n`{base.revision}`" in (folder / "adapter" / "README.md").read_text()


def test_adapters_of_other_weights_or_kinds_and_pickles_are_refused(folder: Path, tmp_path: Path) -> None:
    model, _, base = load_causal(weights(folder))
    other = base.model_copy(update={"revision": "0" * 64})
    with pytest.raises(ValueError, match="revision 000000000000"):
        with_adapter(model, adapter(folder / "adapter"), other)
    LoraConfig().save_pretrained(str(tmp_path))
    torch.save({}, tmp_path / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.safetensors"):
        with_adapter(model, adapter(tmp_path), base)
    (tmp_path / "adapter_model.safetensors").write_bytes(
        (folder / "adapter" / "adapter_model.safetensors").read_bytes()
    )
    IA3Config().save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="LoRA"):
        with_adapter(model, adapter(tmp_path), base)


def test_a_server_gets_no_adapter(tmp_path: Path) -> None:
    path = write_profile(tmp_path)
    path.write_text(
        path.read_text().replace("[diffusion]", 'adapter = { path = "a", licence = "x", gigabytes = 1 }\n[diffusion]')
    )
    with pytest.raises(ProfileError, match="adapter"):
        load_profile(str(path))


def test_bad_pairs_are_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{PAIRS[0].model_dump_json()}\n\n{{"messages": [], "reply": "x", "answer": 1}}\n')
    with pytest.raises(BadLine, match=r"pairs.jsonl, line 3: .*answer"):
        list(read_lines(path, Pair))


@pytest.mark.parametrize(
    ("pairs", "recipe", "message"),
    [([], Recipe(), "0 pairs"), (PAIRS[:1], Recipe(held_out=1.0), "1 pairs")],
)
def test_too_few_pairs_are_refused(folder: Path, pairs: Sequence[Pair], recipe: Recipe, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(weights(folder), pairs, recipe, folder / "none")

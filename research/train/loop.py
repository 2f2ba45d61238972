"""One training loop for the small perception models: a budget in seconds or steps, cosine rate, EMA, resumable.

The batch of a step depends on (seed, step) only, so an interrupted run resumes from its last checkpoint. Time spent
before a stop counts against the budget. torchrun trains in several processes (`ranks.py`).
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import torch
from torch import Tensor, nn

from research.system.folders import RUNS
from research.train.ranks import Ranks
from tinyworld.domain.names import add_domain


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one model is trained. `run` names the folder under `runs/` that holds its checkpoint and log.

    The budget is `seconds` and, where given, `steps`: training ends when either is used up.
    """

    run: str
    seconds: float
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup_steps: int = 100
    ema: float = 0.998
    seed: int = 0
    checkpoint_every: float = 60.0
    steps: int | None = None

    def spent_share(self, steps: int, seconds: float) -> float:
        """The share of the budget that a training has spent, from 0 to 1 and a little over."""
        return max(seconds / self.seconds, steps / self.steps if self.steps else 0.0)

    def rate(self, step: int, share: float) -> float:
        """The learning rate of a step, counted from 0, at a share of the budget: linear warm-up, cosine to 2 %."""
        warmth = min(1.0, (step + 1) / self.warmup_steps)
        return self.learning_rate * warmth * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))


@dataclass(frozen=True, slots=True)
class Progress:
    """What a finished training took."""

    steps: int
    seconds: float
    loss: float


def training_arguments(
    description: str | None,
    seconds: float,
    *,
    names: Collection[str] = (),
    domain: bool = False,
    start: bool = False,
    pictures: int | None = None,
) -> argparse.Namespace:
    """The options that every training command has: `--seconds`, `--seed`, `--threads` (which it also applies).

    With `names` there is also `name`, which of these models to train; with `domain` `--domain`, the one to train on;
    with `start` `--start`, a folder of earlier weights to start from (a Path, or None); with `pictures` `--pictures`,
    which has this default.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if names:
        parser.add_argument("name", choices=tuple(names))
    parser.add_argument("--seconds", type=float, default=seconds, help="budget of the training in wall-clock seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    if start:
        parser.add_argument("--start", type=Path, help="folder of earlier weights to go on from")
    if domain:
        add_domain(parser)
    if pictures is not None:
        parser.add_argument("--pictures", type=int, default=pictures, help="rendered scenes to train on")
    arguments = parser.parse_args()
    if start and arguments.start is not None and not _holds_weights(arguments.start):
        parser.error(f"{arguments.start} has no config.json; name a folder of weights, as in tinyworld/weights/")
    torch.set_num_threads(arguments.threads)
    cv2.setNumThreads(1)
    return arguments


def _holds_weights(folder: Path) -> bool:
    """Whether it has the layout of a model, or of a pipeline of several."""
    return any((folder / name).exists() for name in ("config.json", "model_index.json"))


def run_name(run: str, domain: str, start: Path | None) -> str:
    """The name of a run, with suffixes if it starts from earlier weights or trains on another domain than objects."""
    return "-".join([run, *(["again"] if start else []), *([domain] if domain != "objects" else [])])


def command_of(module: str, domain: str, start: Path | None, **options: object) -> str:
    """The command for a model card: the given options, and those that differ from the defaults."""
    flags = options | ({"domain": domain} if domain != "objects" else {}) | ({"start": start} if start else {})
    return " ".join([f"python -m {module}", *(f"--{name} {value}" for name, value in flags.items())])


def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(model: nn.Module, loss_of: Callable[[nn.Module, int], Tensor], recipe: Recipe) -> Progress:
    """Train `model` in place until the budget is spent; it ends with its EMA weights, in eval mode.

    `loss_of(model, number)` draws a batch by its number, the step's in a single process, and returns its mean loss.
    """
    folder, ranks = RUNS / recipe.run, Ranks.join()
    folder.mkdir(parents=True, exist_ok=True)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimiser = torch.optim.AdamW(_groups(model, recipe), lr=recipe.learning_rate, betas=(0.9, 0.99))
    step, spent, smooth = _resume(folder, model, average, optimiser)
    model.train()
    started = time.monotonic() - spent
    saved = spent
    while (share := recipe.spent_share(step, spent := ranks.agree(time.monotonic() - started))) < 1:
        rate = recipe.rate(step, share)
        for group in optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        torch.manual_seed(recipe.seed * 1_000_003 + ranks.batch(step))
        loss = loss_of(model, ranks.batch(step))
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        ranks.average_gradients(model.parameters())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        _average(average, model, min(recipe.ema, step / (step + 10)))
        smooth = loss.item() if step == 1 else 0.98 * smooth + 0.02 * loss.item()
        if step % 50 == 0 and ranks.first:
            print(f"{recipe.run} step {step} {spent:.0f} s loss {smooth:.4f} rate {rate:.2e}", flush=True)
        if spent - saved > recipe.checkpoint_every and ranks.first:
            _save(folder, model, average, optimiser, (step, spent, smooth))
            saved = spent
    model.load_state_dict(average.state_dict())
    if ranks.first:
        _save(folder, model, average, optimiser, (step, spent, smooth))
    model.eval()
    return Progress(step, round(spent, 1), round(smooth, 4))


def recipe_record(recipe: Recipe, progress: Progress) -> dict[str, float | int | str]:
    """Recipe and outcome, as `training.json` keeps them."""
    options = {name: value for name, value in asdict(recipe).items() if value is not None}
    return {**options, **{f"spent_{name}": value for name, value in asdict(progress).items()}}


def _groups(model: nn.Module, recipe: Recipe) -> list[dict[str, object]]:
    """Matrices decay, vectors do not; a module's `rate_factor` attribute scales its learning rate."""
    factors: dict[int, float] = {}
    for module in model.modules():
        if (factor := getattr(module, "rate_factor", None)) is not None:
            factors.update({id(parameter): float(factor) for parameter in module.parameters()})
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decay = recipe.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((decay, factors.get(id(parameter), 1.0)), []).append(parameter)
    return [{"params": p, "weight_decay": decay, "factor": factor} for (decay, factor), p in groups.items()]


@torch.no_grad()
def _average(average: nn.Module, model: nn.Module, decay: float) -> None:
    old, new = average.state_dict(), model.state_dict()
    for name, value in old.items():
        if value.is_floating_point():
            value.lerp_(new[name], 1 - decay)
        else:
            value.copy_(new[name])


def _save(
    folder: Path,
    model: nn.Module,
    average: nn.Module,
    optimiser: torch.optim.Optimizer,
    at: tuple[int, float, float],
) -> None:
    state = {
        "model": model.state_dict(),
        "average": average.state_dict(),
        "optimiser": optimiser.state_dict(),
        "at": at,
    }
    torch.save(state, folder / "checkpoint.new")
    (folder / "checkpoint.new").replace(folder / "checkpoint.pt")


def _resume(
    folder: Path, model: nn.Module, average: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[int, float, float]:
    if not (folder / "checkpoint.pt").exists():
        return 0, 0.0, 0.0
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    model.load_state_dict(state["model"])
    average.load_state_dict(state["average"])
    optimiser.load_state_dict(state["optimiser"])
    step, spent, smooth = state["at"]
    return int(step), float(spent), float(smooth)

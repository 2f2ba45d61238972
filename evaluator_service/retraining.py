"""Train one arm of a repair by transformers' Trainer; all arms have the same start, seed and number of steps.

    repaired    half of every batch originals, half accepted counterfactuals
    null        half originals, half null arms: the effect of the generator's look alone
    originals   originals only
    augmented   originals only, with RandAugment (Cubuk et al. 2020, arXiv 1909.13719) applied to images and masks

So it is with a number of steps. With epochs, every arm takes all of its images once in each, in a random order.
The data of step k depend on seed and k only, so a training resumed from a checkpoint ends with the same weights.
"""

from __future__ import annotations

import shutil
import tarfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from evaluator_service.models_under_test.hub import load_hub_model
from evaluator_service.models_under_test.trainable import IGNORED, Trainable, TrainingExample
from shared.media.label_maps import VOID
from shared.profiles.weights import Weights
from shared.schemas.repairs import Example, RepairOrder, RepairParameters, TrainedArm
from shared.seeds import derive_seed

CHECKPOINTS = 8  # of one arm
WARM_UP = 0.05  # share of the steps
CLIPPED_AT = 1.0  # norm of the gradient
PIXELS_AT_ONCE = 2**20  # of a batch on a CPU, such as 4 images of 512 × 512: about 0.8 GB in a ResNet-18
MOMENTUM, DECAY = 0.9, 1e-4  # of SGD, as DILLEMA prints them

Open = Callable[[Example], TrainingExample]
"""The pixels of an example's image, with its ground truth."""


class ArmDataset(Dataset[dict[str, Any]]):
    """An arm's training data in the order of the steps: a random source image, then a random image of it."""

    def __init__(self, order: RepairOrder, arm: TrainedArm, trainable: Trainable, opened: Open) -> None:
        self._parameters, self._arm, self._trainable, self._opened = order.parameters, arm, trainable, opened
        beside = {"repaired": order.counterfactuals, "null": order.null_arms}.get(arm, [])
        self._originals, self._beside = _by_source(order.originals), _by_source(beside)
        self._all = [*order.originals, *beside]
        self._epoch, self._shuffled = -1, list[int]()

    def __len__(self) -> int:
        return self._parameters.steps * self._parameters.batch_size

    def __getitem__(self, number: int) -> dict[str, Any]:
        seed = derive_seed("lesson", self._parameters.seed, number)
        chosen = self._sampled(number, seed) if self._parameters.epochs is None else self._of_epoch(number)
        example = self._opened(chosen)
        return self._trainable.inputs(augment(example, seed) if self._arm == "augmented" else example)

    def _sampled(self, number: int, seed: int) -> Example:
        random = np.random.default_rng(seed)
        pool = self._beside if self._beside and number % 2 else self._originals
        images = pool[random.integers(len(pool))]
        return images[random.integers(len(images))]

    def _of_epoch(self, number: int) -> Example:
        epoch, place = divmod(number, len(self._all))
        if epoch != self._epoch:
            random = np.random.default_rng(derive_seed("epoch", self._parameters.seed, epoch))
            self._epoch, self._shuffled = epoch, random.permutation(len(self._all)).tolist()
        return self._all[self._shuffled[place]]


def _by_source(examples: Sequence[Example]) -> list[list[Example]]:
    grouped: defaultdict[str, list[Example]] = defaultdict(list)
    for example in examples:
        grouped[example.source].append(example)
    return [grouped[source] for source in sorted(grouped)]


def augment(example: TrainingExample, seed: int) -> TrainingExample:
    """Apply RandAugment (its defaults: 2 operations of strength 9 of 30) and a random flip.

    Geometric operations also transform the mask (nearest neighbour); it is void outside of the image.
    """
    image = torch.from_numpy(example.image).permute(2, 0, 1)[None].float() / 255
    mask_or_void = np.full(example.image.shape[:2], VOID) if example.mask is None else example.mask
    unlike_void = torch.from_numpy(VOID - mask_or_void.astype(np.float32))[None, None]  # padding is 0, hence void
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        augmented_image, augmented_mask = _flip_and_randaugment()(image, unlike_void)
    pixels = (augmented_image[0].clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    mask = (VOID - augmented_mask[0, 0].round()).to(torch.uint8).numpy()
    return TrainingExample(pixels, example.label, None if example.mask is None else mask)


@cache
def _flip_and_randaugment() -> Any:
    """Built once, because building RandAugment's operations takes as long as applying them to an image."""
    from kornia.augmentation import AugmentationSequential, RandomHorizontalFlip  # slow imports that only one arm needs
    from kornia.augmentation.auto import RandAugment
    from kornia.constants import DataKey, Resample

    return AugmentationSequential(
        RandomHorizontalFlip(p=0.5),
        RandAugment(n=2, m=9),
        data_keys=["input", "mask"],
        extra_args={DataKey.MASK: {"resample": Resample.NEAREST, "align_corners": None}},
    )


def train(
    trainable: Trainable,
    dataset: ArmDataset,
    parameters: RepairParameters,
    folder: Path,
    *,
    resume_from: Path | None,
    stepped: Callable[[int], None],
    saved: Callable[[Path], None],
) -> None:
    """Train in place. `stepped` is called after every step and may raise to stop, `saved` after every checkpoint.

    On a CPU, whose memory other work needs too, large images pass through the model in parts of a batch. The gradient
    is that of the whole batch; only BatchNorm sees the parts.
    """
    disable_progress_bar()
    on_cpu = next(trainable.model.parameters()).device.type == "cpu"
    height, width = dataset[0]["pixel_values"].shape[-2:]
    parts = batch_parts(parameters.batch_size, height * width) if on_cpu else 1

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None) -> torch.Tensor:
        """The part's share of the mean over the batch; the Trainer adds up the parts."""
        mean = trainable.loss(outputs, labels)
        if parts == 1:
            return mean
        assert num_items_in_batch is not None, "the Trainer counts the items of a batch in parts"
        return mean * (labels != IGNORED).sum() / num_items_in_batch

    trainer = Trainer(
        model=trainable.model,
        args=_training_arguments(parameters, folder, on_cpu, parts),
        train_dataset=dataset,
        compute_loss_func=loss,
        callbacks=[_Callbacks(stepped, saved, resume_from)],
        optimizers=optimizers(trainable.model, parameters),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))


def batch_parts(batch_size: int, pixels: int) -> int:
    """In how many equal parts, of at least 2 images, a batch of images of so many pixels is computed; 1 for a prime."""
    sizes = [size for size in range(2, batch_size + 1) if batch_size % size == 0]
    return batch_size // max((size for size in sizes if size * pixels <= PIXELS_AT_ONCE), default=sizes[0])


def optimizers(model: nn.Module, parameters: RepairParameters) -> tuple[Optimizer | None, LRScheduler | None]:
    """Optimiser and schedule; None for those that the Trainer makes itself: AdamW, and a cosine after a warm-up."""
    rate, weights = parameters.learning_rate, model.parameters()
    optimiser: Optimizer | None = None
    if parameters.optimiser == "sgd":
        optimiser = SGD(weights, rate, momentum=MOMENTUM, weight_decay=DECAY)
    elif parameters.optimiser == "adam" or parameters.schedule != "cosine":
        optimiser = Adam(weights, rate)  # AdamW without weight decay is Adam
    if optimiser is None or parameters.schedule == "cosine":
        return optimiser, None
    thirds = -(-parameters.steps // 3) if parameters.schedule == "step" else parameters.steps + 1
    return optimiser, StepLR(optimiser, thirds, gamma=0.1)


def _training_arguments(parameters: RepairParameters, folder: Path, on_cpu: bool, parts: int) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=parameters.steps,
        per_device_train_batch_size=parameters.batch_size // parts,
        gradient_accumulation_steps=parts,
        learning_rate=parameters.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, round(WARM_UP * parameters.steps)),
        max_grad_norm=CLIPPED_AT if parameters.optimiser == "adamw" else 0.0,
        seed=parameters.seed,
        train_sampling_strategy="sequential",
        save_steps=max(1, parameters.steps // CHECKPOINTS),
        save_total_limit=1,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=on_cpu,
    )


class _Callbacks(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Forwards the Trainer's events, and loads a checkpoint's weights when a training is resumed."""

    def __init__(
        self, stepped: Callable[[int], None], saved: Callable[[Path], None], resumed_from: Path | None
    ) -> None:
        self._stepped, self._saved, self._resumed_from = stepped, saved, resumed_from

    def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        """Load a checkpoint as a Hub model, because the Trainer skips weights that are saved under another name."""
        if self._resumed_from is not None:
            model = options["model"]
            weights = Weights(path=self._resumed_from, licence="", gigabytes=1, dtype="float32")
            model.load_state_dict(load_hub_model(type(model), weights).state_dict())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report an optimiser step."""
        self._stepped(int(state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After every checkpoint."""
        self._saved(Path(args.output_dir, f"checkpoint-{state.global_step}"))


def pack(folder: Path, file: IO[bytes]) -> None:
    """Write a folder as a tar, under its own name."""
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(folder, folder.name)
    file.seek(0)


def unpack_checkpoint(file: IO[bytes], folder: Path) -> Path:
    """Empty `folder`, unpack a tar that `pack` wrote into it, and return the checkpoint's folder."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        archive.extractall(folder, filter="data")
    (checkpoint,) = folder.iterdir()
    return checkpoint


def random_weights(model: nn.Module, seed: int) -> Mapping[str, torch.Tensor]:
    """Weights of a new model of the same configuration."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("scratch", seed))
        return type(model)(model.config).state_dict()  # transformers' models take their configuration


def copy_weights(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Copies of a model's weights, from which every arm starts."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}

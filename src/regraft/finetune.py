"""Recipe: a base, or scratch, becomes a run folder with a classifier in it.

Comes in: a base or None, labelled files, settings. Goes out: the folder and a
`FinetuneResult`. `train_classifier` is the part without files, shared by compare and
TextClassifier: whoever fine-tunes in regraft fine-tunes here.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from regraft.averaging import holding, put
from regraft.bases import read_base_settings
from regraft.batches import ExampleRows, example_rows
from regraft.checkpoint import kept_steps
from regraft.config import Settings, resolve
from regraft.errors import ConfigError, DataError
from regraft.evaluate import class_probabilities, cut_share, label_probabilities
from regraft.heads import ClassifierHead, Model
from regraft.lowrank import add_adapters, merge_adapters
from regraft.metrics import accuracy, best_micro_f1, cautious_temperature, f1_thresholds
from regraft.objectives import Objective, classify, classify_each, with_auxiliary
from regraft.parallel import world
from regraft.runfolder import RunFolder, RunInfo, open_run, read_info
from regraft.runtime import SILENT, Progress, device, fingerprint
from regraft.start import Start as Start
from regraft.start import start_from_base as start_from_base
from regraft.start import start_from_scratch as start_from_scratch
from regraft.text import (
    Example,
    check_labels_known,
    check_trainable,
    labels_of,
    load_examples,
    split_examples,
)
from regraft.trainer import BEST, MEAN, TrainState, build_state

# What is followed on valid: of one label each, and of any number.
ACCURACY, MICRO_F1 = "accuracy", "micro-F1"

# Share of the training examples that become valid when no valid file is given.
VALID_SHARE = 0.15


@dataclass(frozen=True)
class EpochRecord:
    """Accuracy on valid after an epoch; epoch 0 is before the first and has no loss.

    Where examples have any number of labels it is the micro-F1, of the best threshold for all.
    """

    epoch: int
    step: int
    train_loss: float | None
    valid_accuracy: float
    seconds: float


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tuning run gave; `best_epoch` is that of the weights kept, if not the last.

    `followed` names what `valid_accuracy` holds. `temperature` is what the scores were divided by
    to be calibrated; None if they are as training left them.
    """

    run_dir: str
    base: str
    labels: tuple[str, ...]
    num_train: int
    num_valid: int
    valid_accuracy: tuple[float, ...]
    cut_share: float
    seconds: float
    transplant: str
    best_epoch: int | None = None
    followed: str = ACCURACY
    temperature: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "FinetuneResult":
        """The result again from JSON, which has lists for tuples."""
        sequences = {name: tuple(values[name]) for name in ("labels", "valid_accuracy")}
        return cls(**{**values, **sequences})


def finetune(
    *,
    base: str | Path | None,
    train: str | Path,
    valid: str | Path | None = None,
    out: str | Path,
    settings: Settings | None = None,
    tokenizer_path: str | Path | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FinetuneResult:
    """Train a classifier on the file `train` and leave it in the folder `out`.

    `base` is the run folder of a language model, a Hugging Face folder, a checkpoint of the lab, or
    None for scratch. Without `valid`, a part of train is held out. With `resume` the run in `out`
    goes on from its last checkpoint.
    """
    settings = settings or resolve(
        "finetune", base=None if base is None else read_base_settings(Path(base))
    )
    if base is not None and tokenizer_path is not None:
        raise ConfigError(
            f"The base {base} has a tokenizer of its own; {tokenizer_path} cannot replace it.",
            "Its weights know the ids of the tokenizer it was pre-trained with.",
            remedy="Leave the tokenizer away, or start from scratch.",
        )
    with open_run(out, resume=resume) as (folder, resume):
        return _finetune(
            base=base,
            train=train,
            valid=valid,
            folder=folder,
            settings=settings,
            tokenizer_path=tokenizer_path,
            resume=resume,
            progress=progress if world().is_first else SILENT,
        )


def _finetune(
    *,
    base: str | Path | None,
    train: str | Path,
    valid: str | Path | None,
    folder: RunFolder,
    settings: Settings,
    tokenizer_path: str | Path | None,
    resume: bool,
    progress: Progress,
) -> FinetuneResult:
    train_examples, valid_examples = load_splits(
        train, valid=valid, settings=settings, progress=progress
    )
    labels = labels_of(train_examples)
    if base is not None:
        start = start_from_base(Path(base), settings=settings)
    else:
        resumed = folder.run_dir / "tokenizer.json" if resume and folder.exists else None
        path = resumed or (None if tokenizer_path is None else Path(tokenizer_path))
        texts = texts_of(train_examples)
        start = start_from_scratch(texts, settings=settings, tokenizer_path=path, progress=progress)
    settings = start.settings

    info = RunInfo(
        kind="classifier",
        status="training",
        labels=labels.names,
        base=None if base is None else {"run_dir": str(base)},
        fingerprints={
            "train": examples_fingerprint(train_examples),
            "valid": examples_fingerprint(valid_examples),
            "tokenizer": start.tokenizer.fingerprint,
            "base": start.fingerprint,
        },
    )
    if world().is_first:
        folder.start(info, settings=settings, tokenizer=start.tokenizer, resume=resume)
    world().wait()
    info = read_info(folder.run_dir)
    if info.status == "complete":
        progress.say(f"{folder.run_dir} is complete already.")
        return FinetuneResult.from_dict(info.result)

    model, transplant = start.build_model(num_classes=len(labels.names), seed=settings.train.seed)
    told = "all weights are new (scratch)" if transplant is None else str(transplant)
    progress.say(f"Graft: {told}.")
    rows = example_rows(
        train_examples, labels=labels, tokenizer=start.tokenizer, data=settings.data
    )
    valid_rows = example_rows(
        valid_examples, labels=labels, tokenizer=start.tokenizer, data=settings.data
    )
    if rows.num_long:
        progress.say(
            f"{rows.num_long / len(rows.targets):.1%} of the training texts are longer than "
            f"{settings.data.max_length} tokens and were cut."
        )
    records = list(
        train_classifier(
            model,
            rows=rows,
            valid_rows=valid_rows,
            settings=settings,
            auxiliary=start.auxiliary(),
            folder=folder,
            progress=progress,
        )
    )
    best = best_epoch(records) if settings.train.patience is not None else None
    if best is not None:
        kept = f"{records[best].valid_accuracy:.1%} on valid"
        progress.say(f"The weights of epoch {best} of {len(records) - 1} are kept: {kept}.")
    is_new_N = unseen(valid_examples, train=train_examples)
    temperature = calibrate(model, valid_rows, is_new_N=is_new_N, settings=settings)
    result = FinetuneResult(
        run_dir=str(folder.run_dir),
        base="scratch" if base is None else str(base),
        labels=labels.names,
        num_train=len(train_examples),
        num_valid=len(valid_examples),
        valid_accuracy=tuple(record.valid_accuracy for record in records),
        cut_share=cut_share(rows),
        seconds=records[-1].seconds,
        transplant=told,
        best_epoch=best,
        followed=MICRO_F1 if has_label_sets(rows) else ACCURACY,
        temperature=temperature,
    )
    info = dataclasses.replace(
        info,
        result=result.to_dict(),
        thresholds=chosen_thresholds(model, valid_rows),
        temperature=temperature,
    )
    folder.finish(info, model=model)
    return result


def load_splits(
    train: str | Path, *, valid: str | Path | None, settings: Settings, progress: Progress
) -> tuple[list[Example], list[Example]]:
    """Labelled train and valid, checked against each other; valid is held out if not given."""
    train_examples = load_examples(train, data=settings.data)
    check_trainable(train_examples)
    if valid is None:
        train_examples, valid_examples = split_examples(
            train_examples, share=VALID_SHARE, seed=settings.train.seed
        )
        if not valid_examples:
            raise DataError(
                f"{train} holds {len(train_examples)} examples, too few to hold some out.",
                "Accuracy is followed on examples that are not trained on.",
                remedy="Give a file of them with --valid, or add examples.",
            )
        progress.say(
            f"No valid file: {len(valid_examples)} of the training examples were held out."
        )
    else:
        valid_examples = load_examples(valid, data=settings.data)
    check_labels_known(valid_examples, labels_of(train_examples))
    separator = settings.data.label_separator
    if separator is not None and all(len(example.names) < 2 for example in train_examples):
        progress.say(
            f"No example of {train} has more than one label: is {separator!r} what stands between?"
        )
    return train_examples, valid_examples


def texts_of(examples: Sequence[Example]) -> list[str]:
    """All texts, of pairs both: what a vocabulary is learned from."""
    pairs = [example.pair for example in examples if example.pair is not None]
    return [*(example.text for example in examples), *pairs]


def examples_fingerprint(examples: Sequence[Example]) -> str:
    """A hash of texts and labels in order."""
    parts = ((e.text, e.label) if e.pair is None else (e.text, e.pair, e.label) for e in examples)
    return fingerprint(part for example in parts for part in example)


def train_classifier(
    model: Model,
    *,
    rows: ExampleRows,
    valid_rows: ExampleRows,
    settings: Settings,
    auxiliary: Objective | None = None,
    folder: RunFolder | None = None,
    progress: Progress = SILENT,
) -> Iterator[EpochRecord]:
    """Train in place; yield accuracy on valid before the first epoch and after every one.

    With a folder, metrics are logged and checkpoints saved there, and a checkpoint found there is
    gone on from. The task a progress shows is one tick an optimiser step. `auxiliary` is the
    start's, for a base that goes on with its own objective.
    """
    train = settings.train
    adapters = None
    if train.lora_rank is not None:
        adapters = add_adapters(model, rank=train.lora_rank, seed=train.seed)
    state = build_state(model.to(device()), settings=train, num_rows=len(rows.lengths))
    followed = MICRO_F1 if has_label_sets(rows) else ACCURACY
    history: list[EpochRecord] = []
    losses: list[float] = []
    checkpoints = None
    if folder is not None:
        checkpoints = folder.checkpoints(keep=train.keep_checkpoints)
        extra = checkpoints.load(state, progress=progress) or {"history": [], "losses": []}
        folder.truncate_metrics(after=state.step if state.step else -1)
        history = [EpochRecord(**values) for values in extra["history"]]
        losses = extra["losses"]
        if state.step:
            progress.say(f"Resuming {folder.run_dir} after step {state.step:,}.")
        yield from history

    def record_epoch() -> EpochRecord:
        with _as_kept(state):
            record = EpochRecord(
                epoch=len(history),
                step=state.step,
                train_loss=float(np.mean(losses)) if losses else None,
                valid_accuracy=_valid_accuracy(model, valid_rows),
                seconds=state.seconds,
            )
            history.append(record)
            _stop_early(state, history=history, patience=train.patience)
        losses.clear()
        if folder is not None:
            folder.log(_log_entry(record, followed=followed))
        return record

    if not history:
        yield record_epoch()
    for record in kept_steps(
        state,
        rows=rows,
        objective=_objective(rows, auxiliary=auxiliary, settings=settings),
        settings=train,
        checkpoints=checkpoints,
        extra=lambda: {
            "history": [dataclasses.asdict(entry) for entry in history],
            "losses": losses,
        },
        name="fine-tune",
        note=lambda record: (
            f"epoch {record.epoch + 1}  loss {record.loss:.3f}  "
            f"valid {history[-1].valid_accuracy:.1%}"
        ),
        progress=progress,
    ):
        losses.append(record.loss)
        if record.is_epoch_end:
            yield record_epoch()
    # A length in steps or minutes may end within an epoch.
    if history[-1].step < state.step:
        yield record_epoch()
    put(model, state.copies.get(BEST, state.copies.get(MEAN, {})))
    if adapters is not None:
        merge_adapters(adapters)


def has_label_sets(rows: ExampleRows) -> bool:
    """Do examples bear any number of labels?"""
    return rows.targets.ndim == 2


def unseen(examples: Sequence[Example], *, train: Sequence[Example]) -> Bool[np.ndarray, " N"]:
    """Which examples are not among those trained on?"""
    seen = {example.content for example in train}
    return np.array([example.content not in seen for example in examples], dtype=bool)


def calibrate(
    model: Model,
    valid_rows: ExampleRows,
    *,
    is_new_N: Bool[np.ndarray, " N"],
    settings: Settings,
) -> float | None:
    """Divide the scores, in place, by the temperature that fits valid best, and return it.

    The last layer of the head takes it up: whatever runs these weights is calibrated, and knows of
    nothing. Only rows that were not trained on count. None, and nothing changes, without any, and
    where classes were weighed: no temperature undoes that (docs/how-to/imbalanced-classes.md).
    """
    if settings.train.class_weight is not None or not is_new_N.any():
        return None
    assert isinstance(model.head, ClassifierHead), "fine-tuning grafts such a head"
    targets = valid_rows.targets[is_new_N]
    if has_label_sets(valid_rows):
        # One temperature for all labels: every yes or no counts.
        chances = label_probabilities(model, valid_rows)[is_new_N].ravel()
        answers, targets = np.stack([1 - chances, chances], axis=1), targets.ravel()
    else:
        answers = class_probabilities(model, valid_rows)[is_new_N]
    temperature = cautious_temperature(answers, targets)
    model.head.divide_scores(temperature)
    return temperature


def chosen_thresholds(model: Model, valid_rows: ExampleRows) -> tuple[float, ...]:
    """The probability from which each label counts, chosen on valid; none of one label each."""
    if not has_label_sets(valid_rows):
        return ()
    probabilities_NC = label_probabilities(model, valid_rows)
    return tuple(f1_thresholds(probabilities_NC, valid_rows.targets).tolist())


def best_epoch(history: Sequence[EpochRecord]) -> int | None:
    """The first of the epochs that are best on valid; the one before training does not count."""
    trained = history[1:]
    return max(trained, key=lambda r: r.valid_accuracy).epoch if trained else None


def _as_kept(state: TrainState) -> contextlib.AbstractContextManager[None]:
    """Inside, the model has the weights that would be kept if training ended now."""
    return holding(state.model, state.copies.get(MEAN, {}))


def _stop_early(state: TrainState, *, history: Sequence[EpochRecord], patience: int | None) -> None:
    """Remember the weights of the best epoch; without a better one for long, this is the end."""
    best = best_epoch(history)
    if patience is None or best is None:
        return
    epoch = history[-1].epoch
    if best == epoch:
        state.copies[BEST] = {name: p.detach().clone() for name, p in state.moving.items()}
    elif epoch - best >= patience:
        state.total_steps = state.step


def _objective(rows: ExampleRows, *, auxiliary: Objective | None, settings: Settings) -> Objective:
    """The classes, and beside them what the base goes on learning."""
    train = settings.train
    weights_C, smoothing = _class_weights(rows, settings=settings), train.label_smoothing or 0.0
    if has_label_sets(rows):
        main = classify_each(weights_C, label_smoothing=smoothing)
    else:
        main = classify(weights_C, label_smoothing=smoothing, rdrop=train.rdrop)
    if train.auxiliary_weight is None:
        return main
    assert auxiliary is not None, "with train.auxiliary_weight, pass the auxiliary of the start"
    is_causal = settings.objective.kind == "causal"
    share = 1.0 if is_causal else settings.objective.mask_rate
    return with_auxiliary(
        main,
        auxiliary,
        weight=train.auxiliary_weight,
        targets_per_row=share * float(rows.lengths.mean()),
    )


def _log_entry(record: EpochRecord, *, followed: str) -> dict[str, Any]:
    return {
        "step": record.step,
        "epoch": record.epoch,
        "loss": record.train_loss,
        f"valid_{followed.lower().replace('-', '_')}": record.valid_accuracy,
    }


def _valid_accuracy(model: Model, rows: ExampleRows) -> float:
    if has_label_sets(rows):
        return best_micro_f1(label_probabilities(model, rows), rows.targets)
    return accuracy(class_probabilities(model, rows).argmax(axis=1), rows.targets)


def _class_weights(rows: ExampleRows, *, settings: Settings) -> torch.Tensor | None:
    """Inverse frequency, scaled so that the mean weight of an example is 1.

    Of several labels, how many examples without a label come on one that bears it.
    """
    if settings.train.class_weight is None:
        return None
    if has_label_sets(rows):
        bearing_C = rows.targets.sum(axis=0)
        ratios_C = (len(rows.targets) - bearing_C) / np.maximum(bearing_C, 1)
        return torch.tensor(np.maximum(ratios_C, 1 / len(rows.targets)), dtype=torch.float32)
    counts_C = np.bincount(rows.targets)
    weights_C = len(rows.targets) / (len(counts_C) * np.maximum(counts_C, 1))
    return torch.tensor(weights_C, dtype=torch.float32)

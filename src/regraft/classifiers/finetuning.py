"""Fine-tuning: a base, or scratch, and labelled examples become a classifier.

`finetune` reads files and writes a run folder; `finetune_examples` is the same for examples in
memory, and `train_classifier` the training loop that comparisons use as well.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from regraft.classifiers.abstention import ALWAYS_ANSWER, Abstention
from regraft.classifiers.epochs import EpochRecord, kept_epoch
from regraft.classifiers.head_start import start_from_regression
from regraft.classifiers.held_out import ISSUES_NAME, find_label_issues
from regraft.classifiers.neural import (
    NeuralClassifier,
    calibrate,
    has_label_sets,
    has_probabilities,
    row_probabilities,
)
from regraft.classifiers.starts import Start, start_from_base, start_from_scratch, texts_of
from regraft.config import Settings, resolve
from regraft.data import (
    VALID_SHARE,
    Example,
    ExampleRows,
    Labels,
    check_labels_known,
    check_trainable,
    example_rows,
    examples_fingerprint,
    labels_of,
    load_examples,
    split_examples,
    write_label_issues,
)
from regraft.errors import ConfigError, DataError
from regraft.models import Model, add_adapters, merge_adapters
from regraft.runtime import SILENT, Plain, Progress, device, in_percent, world
from regraft.stats import accuracy, best_micro_f1, coverage_curve, f1_thresholds
from regraft.training import (
    BEST,
    MEAN,
    Checkpoints,
    LoadedRun,
    Objective,
    RunFolder,
    RunInfo,
    TrainState,
    build_state,
    classify,
    classify_each,
    holding,
    kept_steps,
    open_run,
    put,
    read_base_settings,
    read_info,
    with_auxiliary,
)

# The score on valid after every epoch: for one label per text, for label sets, and for a student.
ACCURACY, MICRO_F1, AGREEMENT = "accuracy", "micro-F1", "agreement"


@dataclass(frozen=True)
class FinetuneResult(Plain):
    """The outcome of fine-tuning; `best_epoch` is that of the weights kept, if not the last.

    `followed` names the score in `valid_accuracy`. `temperature` is what the scores were divided by
    for calibration; None if they were not calibrated. Below the confidence `abstain_below`,
    `predict` does not answer. `num_label_issues` is the number of rows of label_issues.csv.
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
    abstain_below: float | None = None
    num_label_issues: int = 0


def finetune(
    *,
    base: str | Path | None,
    train: str | Path,
    valid: str | Path | None = None,
    out: str | Path,
    settings: Settings | None = None,
    tokenizer_path: str | Path | None = None,
    abstain_below: float | None = None,
    target_accuracy: float | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FinetuneResult:
    """Train a classifier on the file `train` and write it to the run folder `out`.

    `base` is the run folder of a language model, a Hugging Face folder, a checkpoint of the lab, or
    None for scratch. Without `valid`, a part of train is held out. Below the confidence
    `abstain_below` the classifier does not answer; `target_accuracy` chooses that confidence on
    held-out examples, whose labels that may be wrong are listed in label_issues.csv. With `resume`
    the run in `out` continues from its last checkpoint.
    """
    settings = settings or resolve(
        "finetune", base=None if base is None else read_base_settings(Path(base))
    )
    abstention = Abstention(abstain_below, target_accuracy)
    abstention.check(settings.data)
    if base is not None and tokenizer_path is not None:
        raise ConfigError(
            f"The base {base} has its own tokenizer; {tokenizer_path} cannot replace it.",
            "Its weights know the ids of the tokenizer it was pre-trained with.",
            remedy="Omit the tokenizer, or start from scratch.",
        )
    with open_run(out, resume=resume) as (folder, resume):
        return _finetune(
            base=base,
            train=train,
            valid=valid,
            folder=folder,
            settings=settings,
            tokenizer_path=tokenizer_path,
            abstention=abstention,
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
    abstention: Abstention,
    resume: bool,
    progress: Progress,
) -> FinetuneResult:
    train_examples, valid_examples = load_splits(
        train, valid=valid, settings=settings, progress=progress
    )
    is_new_N = unseen(valid_examples, train=train_examples)
    if not is_new_N.any():
        _check_threshold_given(abstention, train=train, valid=valid)
    if base is not None:
        start = start_from_base(Path(base), settings=settings)
    else:
        resumed = folder.run_dir / "tokenizer.json" if resume and folder.exists else None
        path = resumed or (None if tokenizer_path is None else Path(tokenizer_path))
        texts = texts_of(train_examples)
        start = start_from_scratch(texts, settings=settings, tokenizer_path=path, progress=progress)
    info = RunInfo(
        kind="classifier",
        status="training",
        labels=labels_of(train_examples).names,
        base=None if base is None else {"run_dir": str(base)},
        fingerprints={
            "train": examples_fingerprint(train_examples),
            "valid": examples_fingerprint(valid_examples),
            "tokenizer": start.tokenizer.fingerprint,
            "base": start.fingerprint,
        },
    )
    if world().is_first:
        folder.start(info, settings=start.settings, tokenizer=start.tokenizer, resume=resume)
    world().wait()
    info = read_info(folder.run_dir)
    if info.status == "complete":
        progress.say(f"{folder.run_dir} is complete already.")
        return FinetuneResult.from_dict(info.result)
    finetuned = finetune_examples(
        start,
        train_examples,
        valid_examples,
        info=info,
        abstention=abstention,
        folder=folder,
        progress=progress,
    )
    history, info = finetuned.history, finetuned.classifier.run.info
    result = FinetuneResult(
        run_dir=str(folder.run_dir),
        base="scratch" if base is None else str(base),
        labels=info.labels,
        num_train=len(train_examples),
        num_valid=len(valid_examples),
        valid_accuracy=tuple(record.valid_accuracy for record in history),
        cut_share=finetuned.cut_share,
        seconds=history[-1].seconds,
        transplant=finetuned.transplant,
        best_epoch=kept_epoch(history, settings=start.settings),
        followed=MICRO_F1 if info.thresholds else ACCURACY,
        temperature=info.temperature,
        abstain_below=info.abstain_below,
        num_label_issues=_list_issues(finetuned, valid_examples, is_new_N, folder=folder),
    )
    info = dataclasses.replace(info, result=result.to_dict())
    folder.finish(info, model=finetuned.classifier.run.model)
    return result


def _list_issues(
    finetuned: "Finetuned",
    valid: Sequence[Example],
    is_new_N: Bool[np.ndarray, " N"],
    *,
    folder: RunFolder,
) -> int:
    """Write the labels of new examples that may be wrong to the folder; how many there are."""
    run = finetuned.classifier.run
    issues = find_label_issues(
        list(itertools.compress(valid, is_new_N)),
        finetuned.valid_NC[is_new_N],
        labels=Labels(run.info.labels),
        separator=run.settings.data.label_separator,
    )
    if world().is_first:
        write_label_issues(folder.run_dir / ISSUES_NAME, issues)
    return len(issues)


def _check_threshold_given(
    abstention: Abstention, *, train: str | Path, valid: str | Path | None
) -> None:
    """Refuse to choose a threshold where all of valid is trained on."""
    if abstention.target_accuracy is not None:
        raise DataError(
            f"All examples of {valid} are in {train}, too.",
            "--target-accuracy chooses its threshold on examples that were not trained on.",
            remedy="Pass other examples with --valid, or omit it.",
        )


@dataclass(frozen=True)
class Finetuned:
    """A classifier after fine-tuning, and how it went; `transplant` says what the base gave.

    `valid_NC` are its probabilities for the valid examples.
    """

    classifier: NeuralClassifier
    history: list[EpochRecord]
    transplant: str
    cut_share: float
    valid_NC: Float[np.ndarray, "N C"] = dataclasses.field(repr=False)


def finetune_examples(
    start: "Start",
    train: Sequence[Example],
    valid: Sequence[Example],
    *,
    info: RunInfo,
    abstention: Abstention = ALWAYS_ANSWER,
    folder: RunFolder | None = None,
    progress: Progress = SILENT,
) -> Finetuned:
    """Train on examples, then calibrate and choose all thresholds on valid.

    `info` names the labels. With a folder, training is logged and resumed there.
    """
    labels, data, tokenizer = Labels(info.labels), start.settings.data, start.tokenizer
    return finetune_rows(
        start,
        example_rows(train, labels=labels, tokenizer=tokenizer, data=data),
        example_rows(valid, labels=labels, tokenizer=tokenizer, data=data),
        is_new_N=unseen(valid, train=train),
        info=info,
        abstention=abstention,
        folder=folder,
        progress=progress,
    )


def finetune_rows(
    start: "Start",
    rows: ExampleRows,
    valid_rows: ExampleRows,
    *,
    is_new_N: Bool[np.ndarray, " N"],
    info: RunInfo,
    abstention: Abstention = ALWAYS_ANSWER,
    folder: RunFolder | None = None,
    progress: Progress = SILENT,
) -> Finetuned:
    """The same for rows; `is_new_N` are the valid ones that were not trained on."""
    labels, settings = Labels(info.labels), start.settings
    model, transplant = start.build_model(num_classes=len(labels), seed=settings.train.seed)
    grafted = "all weights are new (scratch)" if transplant is None else str(transplant)
    progress.say(f"Graft: {grafted}.")
    if rows.num_long:
        progress.say(
            f"{in_percent(rows.num_long / len(rows.targets))} of the training texts are longer "
            f"than {settings.data.max_length} tokens and were cut."
        )
    history = list(
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
    best = kept_epoch(history, settings=settings)
    if best is not None:
        score = f"{in_percent(history[best].valid_accuracy)} on valid"
        progress.say(f"The weights of epoch {best} of {len(history) - 1} are kept: {score}.")
    temperature = calibrate(model, valid_rows, is_new_N=is_new_N, settings=settings)
    valid_NC, targets, thresholds = row_probabilities(model, valid_rows), valid_rows.targets, ()
    if has_label_sets(valid_rows):
        thresholds = tuple(f1_thresholds(valid_NC, targets).tolist())
    below = abstention.below
    if abstention.target_accuracy is not None:
        below = abstention.threshold(
            coverage_curve(valid_NC[is_new_N], targets[is_new_N]),
            num_examples=int(is_new_N.sum()),
            progress=progress,
        )
    info = dataclasses.replace(
        info, thresholds=thresholds, temperature=temperature, abstain_below=below
    )
    run_dir = Path() if folder is None else folder.run_dir
    run = LoadedRun(run_dir, info, settings, start.tokenizer, model.eval())
    return Finetuned(NeuralClassifier(run), history, grafted, rows.cut_share, valid_NC)


def unseen(examples: Sequence[Example], *, train: Sequence[Example]) -> Bool[np.ndarray, " N"]:
    """Which examples are not among those trained on."""
    seen = {example.content for example in train}
    return np.array([example.content not in seen for example in examples], dtype=bool)


def load_splits(
    train: str | Path, *, valid: str | Path | None, settings: Settings, progress: Progress
) -> tuple[list[Example], list[Example]]:
    """Train and valid examples, checked against each other; without valid, some are held out."""
    train_examples = load_examples(train, data=settings.data, progress=progress)
    check_trainable(train_examples)
    if valid is None:
        train_examples, valid_examples = split_examples(
            train_examples, share=VALID_SHARE, seed=settings.train.seed
        )
        if not valid_examples:
            raise DataError(
                f"{train} holds {len(train_examples)} examples, too few to hold some out.",
                "Accuracy is measured on examples that are not trained on.",
                remedy="Pass a file of them with --valid, or add examples.",
            )
        progress.say(
            f"No valid file: {len(valid_examples)} of the training examples were held out."
        )
    else:
        valid_examples = load_examples(valid, data=settings.data, progress=progress)
    check_labels_known(valid_examples, labels_of(train_examples))
    separator = settings.data.label_separator
    if separator is not None and all(len(example.names) < 2 for example in train_examples):
        progress.say(
            f"No example of {train} has more than one label: is {separator!r} the right separator?"
        )
    return train_examples, valid_examples


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

    With a folder, metrics and checkpoints are written there, and training resumes from the last
    checkpoint. Progress advances by one for each optimizer step. `auxiliary` is that of the Start.
    """
    train = settings.train
    if train.base_rate is not None:
        train = dataclasses.replace(train, lr=train.lr * train.base_rate)
    if settings.head.start == "regression":
        start_from_regression(model.to(device()), rows, seed=train.seed)
    adapters = None
    if train.lora_rank is not None:
        adapters = add_adapters(model, rank=train.lora_rank, seed=train.seed)
    state = build_state(model.to(device()), settings=train, num_rows=len(rows.lengths))
    followed = MICRO_F1 if has_label_sets(rows) else ACCURACY
    followed = AGREEMENT if has_probabilities(rows) else followed
    checkpoints = None if folder is None else folder.checkpoints(keep=train.keep_checkpoints)
    history, losses = _resumed(state, checkpoints, folder=folder, progress=progress)
    yield from history

    def record_epoch() -> EpochRecord:
        start_seconds = time.perf_counter()
        with _as_kept(state):
            record = EpochRecord(
                epoch=len(history),
                step=state.step,
                train_loss=float(np.mean(losses)) if losses else None,
                valid_accuracy=_valid_accuracy(model, valid_rows),
                seconds=state.seconds,
            )
            history.append(record)
            _keep_best(state, history=history, settings=settings)
        losses.clear()
        if folder is not None:
            folder.log(_log_entry(record, followed=followed))
        # Scoring counts against a budget in minutes, as in pre-training.
        state.seconds += world().sums(time.perf_counter() - start_seconds)[0] / world().size
        return record

    if not history:
        yield record_epoch()
    for record in kept_steps(
        state,
        rows=rows,
        objective=_objective(rows, auxiliary=auxiliary, settings=settings),
        settings=train,
        checkpoints=checkpoints,
        extra=lambda: {"history": list(map(dataclasses.asdict, history)), "losses": losses},
        name="fine-tune",
        note=lambda record: _note(record.epoch, record.loss, valid=history[-1]),
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


def _resumed(
    state: TrainState,
    checkpoints: Checkpoints | None,
    *,
    folder: RunFolder | None,
    progress: Progress,
) -> tuple[list[EpochRecord], list[float]]:
    """Epochs before the last checkpoint, which fills `state`, and the losses since the last one."""
    if checkpoints is None or folder is None:
        return [], []
    extra = checkpoints.load(state, progress=progress) or {"history": [], "losses": []}
    folder.truncate_metrics(after=state.step, most=len(extra["history"]))
    if state.step:
        progress.say(f"Resuming {folder.run_dir} after step {state.step:,}.")
    return [EpochRecord(**values) for values in extra["history"]], extra["losses"]


def _note(epoch: int, loss: float, *, valid: EpochRecord) -> str:
    return f"epoch {epoch + 1}  loss {loss:.3f}  valid {in_percent(valid.valid_accuracy)}"


def _as_kept(state: TrainState) -> contextlib.AbstractContextManager[None]:
    """Inside, the model has the weights it would have if training ended now."""
    return holding(state.model, state.copies.get(MEAN, {}))


def _keep_best(state: TrainState, *, history: Sequence[EpochRecord], settings: Settings) -> None:
    """Remember the weights of the best epoch; stop if none was better for `patience` epochs."""
    best, patience = kept_epoch(history, settings=settings), settings.train.patience
    if best is None:
        return
    epoch = history[-1].epoch
    if best == epoch:
        state.copies[BEST] = {name: p.detach().clone() for name, p in state.moving.items()}
    elif patience is not None and epoch - best >= patience:
        state.total_steps = state.step


def _objective(rows: ExampleRows, *, auxiliary: Objective | None, settings: Settings) -> Objective:
    """The classification loss, and the auxiliary one if there is any."""
    train = settings.train
    weights_C, smoothing = _class_weights(rows, settings=settings), train.label_smoothing or 0.0
    if has_label_sets(rows):
        main = classify_each(weights_C, label_smoothing=smoothing)
    else:
        main = classify(weights_C, label_smoothing=smoothing, rdrop=train.rdrop)
    if train.auxiliary_weight is None:
        return main
    assert auxiliary is not None, "with train.auxiliary_weight, pass the auxiliary of the start"
    is_causal = settings.objective.traits.is_causal
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
        return best_micro_f1(row_probabilities(model, rows), rows.targets)
    targets_N = rows.targets.argmax(axis=1) if has_probabilities(rows) else rows.targets
    return accuracy(row_probabilities(model, rows).argmax(axis=1), targets_N)


def _class_weights(rows: ExampleRows, *, settings: Settings) -> torch.Tensor | None:
    """Inverse frequency, scaled so that the mean weight of an example is 1.

    For label sets, the ratio of examples without a label to examples with it.
    """
    if settings.train.class_weight is None:
        return None
    if has_label_sets(rows):
        bearing_C = rows.targets.sum(axis=0)
        ratios_C = (len(rows.targets) - bearing_C) / np.maximum(bearing_C, 1)
        return torch.tensor(np.maximum(ratios_C, 1 / len(rows.targets)), dtype=torch.float32)
    counts_C = rows.targets.sum(axis=0) if has_probabilities(rows) else np.bincount(rows.targets)
    weights_C = len(rows.targets) / (len(counts_C) * np.maximum(counts_C, 1))
    return torch.tensor(weights_C, dtype=torch.float32)

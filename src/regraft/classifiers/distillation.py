"""Distillation: a student network learns to answer as its teacher does (Hinton et al. 2015).

Any classifier can teach: it gives unlabelled texts its probabilities, and the student learns from
all of them. The result is an ordinary fine-tuned classifier: one small network that can be
exported. Knows nothing of a teacher except that it predicts.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from regraft.classifiers.base import Classifier, load_classifier, run_fingerprint
from regraft.classifiers.finetuning import finetune_rows
from regraft.classifiers.neural import NeuralClassifier
from regraft.classifiers.scoring import Evaluation, score_classifier
from regraft.classifiers.seen import part_in_training, seen_warning
from regraft.classifiers.self_training import unlabelled_texts
from regraft.classifiers.starts import Start, start_from_base
from regraft.config import Settings, check_task, replace, resolve
from regraft.data import ExampleRows, load_examples
from regraft.errors import ConfigError, DataError
from regraft.runtime import SILENT, Plain, Progress, duration, fingerprint, write_whole
from regraft.stats import log_probabilities
from regraft.training import (
    TEACHER_NAME,
    RunFolder,
    RunInfo,
    adapted_dir,
    check_one_process,
    class_probabilities,
    open_run,
    pretrain,
    read_base_settings,
    read_settings,
)

STUDENT_PRESET = "student"
# A student of fewer texts learns too little to be worth it.
FEWEST_TEXTS = 100
# All texts are held in memory.
MOST_TEXTS = 200_000
# Texts that the student does not learn from: its agreement with the teacher is measured there.
HELD_OUT_SHARE = 0.1
MOST_HELD_OUT = 1_000
# At least this share of the minutes is for the student, however long the teacher took.
LEAST_SHARE = 0.25


@dataclass(frozen=True)
class DistillResult(Plain):
    """The outcome of distillation.

    `agreement` is the share of held-out texts that student and teacher give the same label, after
    every epoch; `divergence` the Kullback-Leibler divergence of the final student there, in nats.
    `seconds` are those of training. `accuracy` and `teacher_accuracy` are the scores on the
    labelled file, if there was one, and `seen` says whether the teacher was made from it.
    """

    run_dir: str
    teacher: str
    base: str
    labels: tuple[str, ...]
    num_texts: int
    num_held_out: int
    agreement: tuple[float, ...]
    divergence: float
    cut_share: float
    seconds: float
    num_examples: int = 0
    accuracy: float | None = None
    teacher_accuracy: float | None = None
    seen: Literal["train", "valid"] | None = None


def distill(
    teacher: str | Path,
    texts: Sequence[str | Path],
    *,
    out: str | Path,
    base: str | Path | None = None,
    valid: str | Path | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> DistillResult:
    """Train a student of the classifier in the folder `teacher` and write it to the folder `out`.

    `texts` are files of unlabelled text. Without a `base`, one is made of them first, in a folder
    next to `out`. A length in minutes is for all of it. Student and teacher are scored on the
    labelled file `valid`, if given. With `resume` a run that was interrupted goes on.
    """
    check_one_process("`regraft distill`")
    start_seconds = time.perf_counter()
    if settings is None:
        before = None if base is None else read_base_settings(Path(base))
        settings = resolve("finetune", preset=STUDENT_PRESET, base=before)
    if settings.head.start != "random":
        raise ConfigError(
            f"head.start is {settings.head.start}, which needs labels.",
            "A student learns from probabilities.",
            remedy="Omit the setting.",
        )
    classifier = load_classifier(teacher)
    check_task(classifier.data, by="`regraft distill`")
    examples = (
        None if valid is None else load_examples(valid, data=classifier.data, progress=progress)
    )
    if examples and (warning := seen_warning(Path(teacher), Path(str(valid)), examples)):
        progress.say(warning)
    RunFolder(Path(out)).check_free(resume=resume)
    documents = _texts(texts, settings=settings, progress=progress)
    if base is None:
        base = _made_base(texts, out=out, settings=settings, resume=resume, progress=progress)
    lesson = _Lesson(classifier, Path(teacher), documents)
    with open_run(out, resume=resume) as (folder, resume):
        student, result = _distill(
            lesson,
            base=Path(base),
            folder=folder,
            settings=settings,
            start_seconds=start_seconds,
            resume=resume,
            progress=progress,
        )
        if student is None:
            return result
        if examples is not None:
            scores = [score_classifier(each, examples) for each in (student, classifier)]
            own, teachers = (score for score in scores if isinstance(score, Evaluation))
            result = dataclasses.replace(
                result,
                num_examples=own.num_examples,
                accuracy=own.accuracy.mean,
                teacher_accuracy=teachers.accuracy.mean,
                seen=part_in_training(Path(teacher), examples),
            )
        info = dataclasses.replace(student.run.info, result=result.to_dict())
        folder.finish(info, model=student.run.model)
    return result


@dataclass(frozen=True)
class _Lesson:
    """Who teaches, and on which texts."""

    teacher: Classifier
    teacher_dir: Path
    texts: list[str]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the teacher and of the texts."""
        return {"teacher": run_fingerprint(self.teacher_dir), "text": fingerprint(self.texts)}

    def probabilities(self, path: Path, *, progress: Progress) -> NDArray[np.float32]:
        """N x C probabilities of the teacher, kept in the file `path`."""
        key = fingerprint(self.fingerprints.values())
        try:
            with safe_open(path, framework="np") as file:
                if file.metadata().get("key") == key:
                    kept: NDArray[np.float32] = file.get_tensor("probabilities")
                    return kept
        except (FileNotFoundError, SafetensorError):
            pass
        progress.say(f"The teacher answers {len(self.texts):,} texts.")
        answers_NC = self.teacher.predict_proba(self.texts, progress=progress)
        probabilities_NC: NDArray[np.float32] = answers_NC.astype(np.float32)
        data = save({"probabilities": probabilities_NC}, metadata={"key": key})
        write_whole(path, lambda file: file.write(data))
        return probabilities_NC


def _texts(paths: Sequence[str | Path], *, settings: Settings, progress: Progress) -> list[str]:
    if Path("-") in map(Path, paths):
        raise ConfigError(
            "Text for a student cannot come from standard input.",
            "It is read more than once.",
            remedy="Write it to a file and pass that with --text.",
        )
    texts = unlabelled_texts(paths, settings=settings, most=MOST_TEXTS)
    if len(texts) < FEWEST_TEXTS:
        raise DataError(
            f"{', '.join(map(str, paths))} holds {len(texts)} texts.",
            f"A student learns from the teacher's answers to {FEWEST_TEXTS} texts or more.",
            remedy="Add files with --text; if all text is one document, see --documents.",
        )
    if len(texts) == MOST_TEXTS:
        progress.say(f"The student learns from the first {MOST_TEXTS:,} texts.")
    return texts


def _made_base(
    texts: Sequence[str | Path],
    *,
    out: str | Path,
    settings: Settings,
    resume: bool,
    progress: Progress,
) -> Path:
    """A base of the student's shape, trained in its stages on the same text."""
    folder, data = adapted_dir(out), settings.data
    length = {"minutes": settings.train.minutes} if settings.train.minutes else {"epochs": 1}
    defaults = resolve(
        "pretrain",
        preset=settings.preset,
        overrides={
            **{f"train.{name}": value for name, value in length.items()},
            "train.seed": settings.train.seed,
            "train.threads": settings.train.threads,
            **{
                f"data.{name}": getattr(data, name)
                for name in ("text_column", "encoding", "documents", "max_length")
            },
        },
    )
    same = {name: getattr(settings, name) for name in ("model", "objective", "head", "tokenizer")}
    pretraining = dataclasses.replace(defaults, **same)
    pretrain(texts, out=folder, settings=pretraining, resume=resume, progress=progress)
    return folder


def _distill(
    lesson: _Lesson,
    *,
    base: Path,
    folder: RunFolder,
    settings: Settings,
    start_seconds: float,
    resume: bool,
    progress: Progress,
) -> tuple[NeuralClassifier | None, DistillResult]:
    """The student before it is saved, and how it went; no student where it was complete."""
    teacher, path = lesson.teacher, folder.run_dir / TEACHER_NAME
    if settings.train.minutes is not None:
        # Only the first start knows how long the teacher took; a resumed one must end the same.
        minutes = settings.train.minutes
        if resume and folder.exists:
            minutes = read_settings(folder.run_dir).train.minutes or minutes
        else:
            lesson.probabilities(path, progress=progress)
            gone = (time.perf_counter() - start_seconds) / 60
            minutes = max(minutes - gone, LEAST_SHARE * minutes)
            progress.say(f"{duration(60 * minutes)} are left for the student.")
        settings = replace(settings, "train", minutes=minutes)
    start = _start(base, settings=settings, teacher=teacher)
    info = RunInfo(
        kind="classifier",
        status="training",
        labels=teacher.labels,
        base={"run_dir": str(base)},
        fingerprints={
            **lesson.fingerprints,
            "tokenizer": start.tokenizer.fingerprint,
            "base": start.fingerprint,
        },
    )
    info = folder.start(info, settings=start.settings, tokenizer=start.tokenizer, resume=resume)
    if info.status == "complete":
        progress.say(f"{folder.run_dir} is complete already.")
        return None, DistillResult.from_dict(info.result)
    probabilities_NC = lesson.probabilities(path, progress=progress)
    rows, held_rows = _split(lesson.texts, probabilities_NC, start=start)
    finetuned = finetune_rows(
        start,
        rows,
        held_rows,
        is_new_N=np.ones(len(held_rows.targets), dtype=bool),
        info=info,
        folder=folder,
        progress=progress,
    )
    student = _as_calibrated(finetuned.classifier, teacher=teacher)
    history = finetuned.history
    return student, DistillResult(
        run_dir=str(folder.run_dir),
        teacher=str(lesson.teacher_dir),
        base=str(base),
        labels=teacher.labels,
        num_texts=len(rows.targets),
        num_held_out=len(held_rows.targets),
        agreement=tuple(record.valid_accuracy for record in history),
        divergence=divergence(held_rows.targets, class_probabilities(student.run.model, held_rows)),
        cut_share=finetuned.cut_share,
        seconds=history[-1].seconds,
    )


def _start(base: Path, *, settings: Settings, teacher: Classifier) -> Start:
    """Files are read later as the teacher reads them. Layers that were trained are not skipped."""
    names = ("text_column", "label_column", "encoding")
    columns = {name: getattr(teacher.data, name) for name in names}
    settings = replace(settings, "data", **columns)
    start = start_from_base(base, settings=settings)
    assert start.base is not None, "it starts from one"
    stages = [stage["name"] for stage in start.base.info.result.get("stages", [])]
    if stages != ["words"]:
        trained = replace(start.settings, "train", layers_after=None)
        start = dataclasses.replace(start, settings=trained)
    return start


def _split(
    texts: Sequence[str], probabilities_NC: Float[np.ndarray, "N C"], *, start: Start
) -> tuple[ExampleRows, ExampleRows]:
    """Rows to learn from, and rows held out."""
    settings = start.settings
    num_held_out = min(round(HELD_OUT_SHARE * len(texts)), MOST_HELD_OUT)
    order_N = np.random.default_rng(settings.train.seed).permutation(len(texts))

    def rows(numbers: NDArray[np.int64]) -> ExampleRows:
        return ExampleRows(
            [texts[number] for number in numbers],
            targets=probabilities_NC[numbers],
            tokenizer=start.tokenizer,
            data=settings.data,
        )

    return rows(order_N[num_held_out:]), rows(order_N[:num_held_out])


def _as_calibrated(student: NeuralClassifier, *, teacher: Classifier) -> NeuralClassifier:
    """A student of calibrated probabilities has such, too, and needs no temperature."""
    info = dataclasses.replace(student.run.info, temperature=1.0 if teacher.is_calibrated else None)
    return NeuralClassifier(dataclasses.replace(student.run, info=info))


def divergence(teacher_NC: Float[np.ndarray, "N C"], student_NC: Float[np.ndarray, "N C"]) -> float:
    """Kullback-Leibler divergence of the student from the teacher, in nats per text."""
    logs_NC = log_probabilities(teacher_NC) - log_probabilities(student_NC)
    return float((teacher_NC * logs_NC).sum(axis=1).mean())

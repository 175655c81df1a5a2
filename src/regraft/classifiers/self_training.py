"""Self-training: a teacher labels unlabelled text, and a student learns from these labels, too.

Only confident predictions are used, the same number for each class (Yarowsky 1995; Scudder 1965;
class-balanced as in Zou et al. 2018). The teachers are kept in a folder next to the last student.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from regraft.classifiers.abstention import Abstention
from regraft.classifiers.base import load_classifier
from regraft.classifiers.finetuning import FinetuneResult, finetune, load_splits
from regraft.classifiers.held_out import ISSUES_NAME
from regraft.config import Settings, check_task
from regraft.data import Example, read_documents, read_label_issues, write_label_issues
from regraft.errors import ConfigError, DataError
from regraft.runtime import SILENT, Progress, write_text
from regraft.stats import tempered
from regraft.training import RunFolder, check_one_process

# A teacher reads the first texts up to this number.
MOST_TEXTS = 20_000

# The most texts that are added, as a multiple of the labelled examples: a student reads them as
# often as these.
MOST_TAKEN = 4


def teachers_dir(out: str | Path) -> Path:
    """The folder of the teachers, next to that of the classifier."""
    return Path(f"{out}-teachers")


def self_train(
    *,
    base: str | Path | None,
    train: str | Path,
    unlabelled: Sequence[str | Path],
    out: str | Path,
    settings: Settings,
    valid: str | Path | None = None,
    tokenizer_path: str | Path | None = None,
    rounds: int = 1,
    confidence: float = 0.9,
    abstain_below: float | None = None,
    target_accuracy: float | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FinetuneResult:
    """Fine-tune a teacher, label the texts with it, fine-tune a student on both; `rounds` times.

    A student is the next teacher; the last one is written to `out`. Every student starts from the
    base again. The valid examples stay the same and are never among the texts that are added.
    """
    check_one_process("--self-train")
    check_task(settings.data, by="--self-train")
    Abstention(abstain_below, target_accuracy).check(settings.data)
    if not 0 < confidence < 1:
        raise ConfigError(
            f"The confidence is {confidence:g}.",
            "It is the least probability of a label to be used, above 0 and below 1.",
            remedy="Use one such as 0.9.",
        )
    RunFolder(Path(out)).check_free(resume=resume)
    labelled, valid_examples = load_splits(train, valid=valid, settings=settings, progress=progress)
    known = {example.text for example in (*labelled, *valid_examples)}
    texts = unlabelled_texts(unlabelled, known=known, settings=settings, most=MOST_TEXTS)
    folder = teachers_dir(out)
    folder.mkdir(parents=True, exist_ok=True)
    valid_path = _write(folder / "valid.jsonl", valid_examples, settings=settings)
    train_path = _write(folder / "train-0.jsonl", labelled, settings=settings)
    for number in range(1, rounds + 1):
        teacher_dir = folder / f"teacher-{number}"
        finetune(
            base=base,
            train=train_path,
            valid=valid_path,
            out=teacher_dir,
            settings=settings,
            tokenizer_path=tokenizer_path,
            resume=resume,
            progress=progress,
        )
        taken = labelled_by(
            teacher_dir, texts, confidence=confidence, num_labelled=len(labelled), progress=progress
        )
        progress.say(f"Round {number}: {len(taken):,} of {len(texts):,} texts are taken.")
        path = folder / f"train-{number}.jsonl"
        train_path = _write(path, [*labelled, *taken], settings=settings)
    result = finetune(
        base=base,
        train=train_path,
        valid=valid_path,
        out=out,
        settings=settings,
        tokenizer_path=tokenizer_path,
        abstain_below=abstain_below,
        target_accuracy=target_accuracy,
        resume=resume,
        progress=progress,
    )
    _name_own_rows(Path(out) / ISSUES_NAME, valid_examples)
    return result


def _name_own_rows(path: Path, examples: Sequence[Example]) -> None:
    """Name the rows of the user's file in a list of issues, not those of the teachers' copy."""
    own = {example.text: (example.row, example.id) for example in examples}
    issues = []
    for issue in read_label_issues(path):
        row, id_ = own.get(issue.text, (issue.row, issue.id))
        issues.append(replace(issue, row=row, id=id_))
    write_label_issues(path, issues)


def labelled_by(
    teacher_dir: Path,
    texts: Sequence[str],
    *,
    confidence: float,
    num_labelled: int,
    progress: Progress = SILENT,
) -> list[Example]:
    """The texts that a teacher labels confidently, with its labels, equally many per class."""
    teacher = load_classifier(teacher_dir)
    names = teacher.labels
    probabilities_NC = teacher.predict_proba(texts, progress=progress)
    if teacher.temperature is not None:
        # Without calibration: the default confidence was chosen and measured that way.
        probabilities_NC = tempered(probabilities_NC, 1 / teacher.temperature)
    by_class = sure_rows(probabilities_NC, confidence=confidence)
    rarest = min(range(len(names)), key=lambda target: len(by_class[target]))
    if not len(by_class[rarest]):
        raise DataError(
            f"No text was labelled {names[rarest]!r} with a probability of {confidence:g} or more.",
            "Each round adds the same number of texts for every class.",
            remedy="Lower --confidence, or pass text in which all classes occur.",
        )
    num_taken = min(len(by_class[rarest]), max(MOST_TAKEN * num_labelled // len(names), 1))
    return [
        Example(texts[row], names[target], source=str(teacher_dir), row=row + 1)
        for target, rows_of_class in enumerate(by_class)
        for row in rows_of_class[:num_taken].tolist()
    ]


def sure_rows(
    probabilities_NC: Float[np.ndarray, "N C"], *, confidence: float
) -> list[NDArray[np.int64]]:
    """For each class, the rows predicted with at least this probability, most confident first."""
    predicted_N, surest_N = probabilities_NC.argmax(axis=1), probabilities_NC.max(axis=1)
    order = np.argsort(-surest_N, kind="stable")
    order = order[surest_N[order] >= confidence]
    return [order[predicted_N[order] == c] for c in range(probabilities_NC.shape[1])]


def unlabelled_texts(
    paths: Sequence[str | Path],
    *,
    settings: Settings,
    most: int,
    known: Collection[str] = frozenset(),
) -> list[str]:
    """The first texts for a teacher to label, each once, without those that are known."""
    texts: dict[str, None] = {}
    for document in read_documents(paths, data=settings.data):
        if document.text.strip() and document.text not in known:
            texts[document.text] = None
        if len(texts) == most:
            break
    if not texts:
        more = " beyond the labelled ones" if known else ""
        raise DataError(
            f"{', '.join(map(str, paths))} holds no text{more}.",
            "A teacher labels texts that have no label yet.",
            remedy="Pass other text with --text.",
        )
    return list(texts)


def _write(path: Path, examples: Sequence[Example], *, settings: Settings) -> Path:
    """Examples as a file that the same settings read."""
    data = settings.data
    lines = [
        json.dumps({data.text_column: example.text, data.label_column: example.label}) + "\n"
        for example in examples
    ]
    write_text(path, "".join(lines))
    return path

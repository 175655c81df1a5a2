"""Export of a fitted classifier to a folder that numpy alone reads. Needs no torch.

The folder holds the classifier's parts as JSON and arrays, and numpy_reader.py, which is run on
sample texts before the folder is complete.
"""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from regraft.classifiers import Classifier, load_classifier
from regraft.errors import ConfigError
from regraft.export.parity import SENTENCES, TOLERANCE, ExportResult, Parity, check_parity
from regraft.runtime import SILENT, Progress, whole_folder, write_text, write_whole

_READER = Path(__file__).with_name("numpy_reader.py")
# Enough to exceed all windows of a base.
_MANY = 500
_CARD = """\
---
tags: ["regraft"]
pipeline_tag: "text-classification"
---

# {name}

A classifier of texts that numpy reads, without regraft: {labels}.

## Use

```python
from classifier import load

classify = load(".")
print(classify.predict(["What a lovely story.", "A dull book."]))
print(classify.predict_proba(["What a lovely story."]))
```

Run it in this folder, or put the folder on `sys.path`. It takes a few milliseconds for a page of
text; `regraft predict` is several times as fast for many.

## Members

Their log-probabilities are averaged with these weights and divided by the temperature, which is
{temperature}; `classifier.py` has each step in order. Held-out accuracy is that of `regraft fit`.

| member | kind | weight | held-out accuracy |
|---|---|---|---|
{members}

## Files

| file | content |
|---|---|
| `classifier.py` | reads the others; needs Python 3.10 and numpy |
| `classifier.json` | labels, weights, and the words that members know |
| `arrays.npz` | numbers, by the name of the member: coefficients, frequencies, tables |

## Parity

The largest difference from a probability of `regraft predict`, on {num_texts} texts of several
alphabets and lengths: {difference:.1e}. More than {tolerance:g} would have stopped the export.

## Limits

It knows its labels only, and the kind of text it was trained on; on other text, measure first. For
characters newer than the Unicode version of your Python, it may split words differently.
"""


def export_numpy(
    run_dir: str | Path, *, out: str | Path, progress: Progress = SILENT
) -> ExportResult:
    """Write a fitted classifier to `out`, a new or empty folder, with the code that reads it."""
    classifier = load_classifier(run_dir)
    if "numpy" not in classifier.export_formats:
        raise ConfigError(
            f"{run_dir} holds a classifier of the kind {classifier.kind!r}, which numpy alone "
            "cannot read.",
            "It reads classifiers of `regraft fit` whose tokens are whole words.",
            remedy="Use --format onnx; with --text FILE a student of any classifier is exported.",
        )
    progress.start("writing and comparing", total=None)
    with whole_folder(Path(out)) as folder:
        _write_parts(classifier, folder)
        write_text(folder / "classifier.py", _READER.read_text(encoding="utf-8"))
        parity = _parity(classifier, folder)
        check_parity(parity, made_by="numpy")
        write_text(folder / "README.md", _card(classifier, parity, name=Path(out).resolve().name))
    progress.finish()
    return ExportResult(str(out), "numpy", (parity,))


def _share(score: Mapping[str, Any] | None) -> str:
    """A score with its interval."""
    if score is None:
        return ""
    return "{mean:.1%} ({low:.1%} to {high:.1%})".format(**score["accuracy"])


def _write_parts(classifier: Classifier, folder: Path) -> None:
    """classifier.json and arrays.npz, whose names begin with that of the member."""
    priors_C = classifier.priors_C
    facts: dict[str, Any] = {
        "labels": list(classifier.labels),
        "temperature": 1.0 if classifier.temperature is None else classifier.temperature,
        "thresholds": list(classifier.thresholds),
        "abstain_below": classifier.abstain_below,
        "priors": [] if priors_C is None else priors_C.tolist(),
        "members": {},
    }
    arrays: dict[str, Any] = {}
    for name, member in classifier.active_members.items():
        parts = member.portable()
        weight = {"weight": classifier.weights[name]}
        facts["members"][name] = {**weight, **parts.facts, "terms": dict(parts.terms)}
        arrays.update({f"{name}.{key}": array for key, array in parts.arrays.items()})
    # Escaped: a term may hold half of a surrogate pair, which UTF-8 cannot.
    write_text(folder / "classifier.json", json.dumps(facts, ensure_ascii=True) + "\n")
    write_whole(folder / "arrays.npz", lambda file: np.savez(file, **arrays))


def _parity(classifier: Classifier, folder: Path) -> Parity:
    """The largest difference of a probability."""
    texts = [*SENTENCES, " ".join(SENTENCES * _MANY)]
    read_NC = _reader(folder).load(folder).predict_proba(texts)
    difference = float(np.abs(read_NC - classifier.predict_proba(texts)).max())
    return Parity(
        name="probabilities",
        differences={"no padding": difference},
        num_texts=len(texts),
        text=texts[0],
        vector=tuple(read_NC[0].tolist()),
    )


def _card(classifier: Classifier, parity: Parity, *, name: str) -> str:
    """README.md."""
    scores, weights = classifier.held_out_scores, classifier.weights
    rows = [
        f"| {member} | {model.kind} | {weights[member]:.2f} | {_share(scores.get(member))} |"
        for member, model in classifier.active_members.items()
    ]
    if classifier.members:
        rows.append(f"| all together | | | {_share(scores.get('blend'))} |")
    return _CARD.format(
        name=name,
        labels=", ".join(f"`{label}`" for label in classifier.labels),
        temperature=f"{classifier.temperature or 1:.3f}",
        members="\n".join(rows),
        num_texts=parity.num_texts,
        difference=parity.largest,
        tolerance=TOLERANCE,
    )


def _reader(folder: Path) -> ModuleType:
    """The module in the folder."""
    spec = importlib.util.spec_from_file_location("classifier", folder / "classifier.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

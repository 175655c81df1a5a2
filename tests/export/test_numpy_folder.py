"""A fitted classifier as a folder that needs numpy alone: it is read where nothing else is."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import make_records
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import write_run
from tiny_blends import TINY_BAG, light_blend

from regraft.classifiers.base import Classifier
from regraft.classifiers.base_table import FoldedModel
from regraft.classifiers.storage import Stored
from regraft.classifiers.tfidf import fit_linear, fit_naive_bayes
from regraft.config.resolution import resolve
from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.records import Example, labels_of
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.errors import ConfigError
from regraft.export import numpy_reader
from regraft.export.numpy_folder import export_numpy

REVIEWS = [review.text for review in synthetic_reviews(num_documents=9, seed=4)]
ODD = [
    "",
    " ",
    "\u0130stanbul \u03a3\u03a3 !?",
    "\u0130\u015fte I\u0307 i\u0307\u0301 \u0130\u0307 \u012e\u0307",
    "half \ud83d of two",
    "a_b 3\u0663 e\u0301 \u672c",
    "x",
]
# What the reader may not find: everything that regraft is made of, but numpy.
ALONE = """
import json, sys
for name in ("regraft", "scipy", "sklearn", "torch", "tokenizers", "safetensors", "pydantic"):
    sys.modules[name] = None
from classifier import load
classify = load(".")
texts = json.loads(sys.argv[1])
print(json.dumps([classify.predict(texts), classify.predict_proba(texts).tolist()]))
"""


def label_sets() -> Classifier:
    names = (("dull",), ("dull", "long"), (), ("long",))
    train = [
        Example(review.text, "", "made", row, labels=names[row % 4])
        for row, review in enumerate(synthetic_reviews(num_documents=60, seed=5))
    ]
    return fit_linear(train, None, labels=labels_of(train))


def made(name: str) -> Classifier:
    blend = light_blend(3 if name == "three labels" else 2)
    examples = make_records(60)
    changes = {"priors": {"priors": [0.8, 0.2]}, "abstains": {"abstain_below": 0.6}}.get(name)
    if changes is not None:
        return replace(blend, info=replace(blend.info, result={**blend.info.result, **changes}))
    if name == "nbsvm":
        return fit_naive_bayes(examples, examples, labels=labels_of(examples))
    if name == "label sets":
        return label_sets()
    return blend.members.get(name, blend)


@pytest.mark.parametrize(
    "name",
    [
        *("two labels", "three labels", "priors", "abstains"),
        *("linear", "latent", "features", "nbsvm", "label sets"),
    ],
)
def test_folder_answers_alone_as_the_classifier_does(name, tmp_path):
    classifier = made(name)
    classifier.save(tmp_path / "run")
    result = export_numpy(tmp_path / "run", out=tmp_path / "out")
    assert result.largest_difference < 1e-6
    texts = [*REVIEWS, *ODD]
    command = [sys.executable, "-c", ALONE, json.dumps(texts)]
    done = subprocess.run(command, cwd=tmp_path / "out", capture_output=True, text=True, check=True)
    labels, probabilities = json.loads(done.stdout)
    expected_NC = classifier.predict_proba(texts)
    assert np.abs(np.array(probabilities) - expected_NC).max() < 1e-6
    predicted = classifier.predict(texts)
    if classifier.thresholds:
        names = np.array(classifier.labels)
        assert labels == [names[row.astype(bool)].tolist() for row in predicted]
    else:
        least = classifier.abstain_below or 0
        is_sure = expected_NC.max(axis=1) >= least
        assert labels == [
            label if sure else None for label, sure in zip(predicted, is_sure, strict=True)
        ]
        assert (name == "abstains") == (None in labels)


def test_tokens_are_those_of_the_tokenizer():
    bag = resolve("pretrain", preset="bag", overrides=TINY_BAG)
    tokenizer = train_tokenizer([*REVIEWS, "i\u015fte i\u015fte"], settings=bag.tokenizer)
    assert "i\u015fte" in tokenizer.vocabulary
    facts = {"vocabulary": tokenizer.vocabulary, "unknown": tokenizer.unknown_id}
    reader = numpy_reader.Folded(facts, {"token_ids": np.zeros(0), "pair_keys": np.zeros(0)})

    # Not all of Unicode: Python and the tokenizer may know different versions of it.
    @given(st.text(st.sampled_from("".join(ODD)) | st.characters(max_codepoint=0x24F)))
    @settings(max_examples=200, deadline=None)
    def check(text):
        assert reader.token_ids(text) == tokenizer.encode(text)

    check()
    for text in ODD:
        check.hypothesis.inner_test(text)


def test_card_runs_and_names_no_path(tmp_path):
    light_blend().save(tmp_path / "run")
    export_numpy(tmp_path / "run", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| linear | linear | 0.50 |" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "out", capture_output=True, check=True
    )
    assert done.stdout.startswith(b"[")
    for path in (tmp_path / "out").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()


def test_network_is_refused_and_nothing_is_left(tmp_path):
    run: Path = write_run(tmp_path / "run", preset="lab", objective="causal", pooling="last")
    with pytest.raises(ConfigError, match=r"kind 'classifier'.*whole words.*--format onnx"):
        export_numpy(run, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_reader_that_differs_is_refused(tmp_path, monkeypatch):
    light_blend().save(tmp_path / "run")
    portable = FoldedModel.portable

    def cut(model: FoldedModel) -> Stored:
        parts = portable(model)
        return replace(parts, facts={**parts.facts, "most_windows": 1})

    monkeypatch.setattr(FoldedModel, "portable", cut)
    with pytest.raises(Exception, match="differs from regraft"):
        export_numpy(tmp_path / "run", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()

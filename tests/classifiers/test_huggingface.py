"""Hugging Face folders with a classification head: classifiers like any other."""

import json

import numpy as np
import pytest
from random_runs import write_run

from regraft.classifiers.attribution import Explainer
from regraft.classifiers.base import load_classifier, run_fingerprint
from regraft.classifiers.scoring import evaluate
from regraft.config.task import Task
from regraft.errors import RunFolderError
from regraft.export.huggingface import export_huggingface

TEXTS = ["the plot is dull", "", "her style isn't: wonderful to the last page! " * 20]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    run = write_run(folder / "run", preset="bert", objective="masked", pooling="first")
    export_huggingface(run, out=folder / "hf")
    return run, folder / "hf"


def test_exported_folder_predicts_as_the_run_does(folders, tmp_path):
    ours, theirs = map(load_classifier, folders)
    assert theirs.kind == "huggingface"
    assert theirs.labels == ours.labels
    assert (theirs.network, theirs.export_formats) == (None, ())
    np.testing.assert_allclose(theirs.predict_proba(TEXTS), ours.predict_proba(TEXTS), atol=1e-4)
    assert theirs.cut_share(TEXTS) == ours.cut_share(TEXTS) == pytest.approx(1 / 3)
    theirs.save(tmp_path / "copy")
    again = load_classifier(tmp_path / "copy")
    assert np.array_equal(again.predict_proba(TEXTS), theirs.predict_proba(TEXTS))
    assert run_fingerprint(tmp_path / "copy") != ""


def test_folder_reads_pairs_and_single_texts(folders):
    classifier = load_classifier(folders[1])
    assert classifier.supports(Task(has_pairs=True))
    assert not classifier.supports(Task(has_label_sets=True))
    assert classifier.predict_proba([("a plot", "a style")]).shape == (1, len(classifier.labels))


def test_folder_is_evaluated_and_explained(folders, tmp_path):
    labels = load_classifier(folders[1]).labels
    rows = [{"text": text or "none", "label": labels[0]} for text in TEXTS]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert evaluate(folders[1], path).num_examples == 3
    assert Explainer.load(folders[1]).explain("the plot is dull").method == "leave-one-out"


def test_folder_without_a_head_is_refused(folders, tmp_path):
    import shutil

    folder = shutil.copytree(folders[1], tmp_path / "bare")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    with pytest.raises(RunFolderError) as caught:
        load_classifier(folder)
    assert str(folder) in caught.value.problem

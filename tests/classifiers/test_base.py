"""The Classifier protocol: every kind keeps it, kinds are registered once and loaded by name."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from random_runs import write_run
from tampering import change_facts
from tiny_blends import light_blend

from regraft.classifiers import base
from regraft.classifiers.base import (
    Classifier,
    classifier_kinds,
    load_classifier,
    register_classifier,
    run_fingerprint,
)
from regraft.classifiers.embeddings import BaseSpace, EmbeddingModel
from regraft.classifiers.logistic import fit_in_space
from regraft.classifiers.storage import Stored, load_member, save_member
from regraft.classifiers.tfidf import fit_naive_bayes
from regraft.config.task import Task
from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.records import Example, labels_of
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.training.loaded_run import load_run

TEXTS = ["A superb camera, I love it.", "It broke after a day.", ""]
KINDS = ["blend", "linear", "latent", "folded", "embedding", "nbsvm", "classifier"]


@pytest.fixture(scope="module")
def folders(shared_base, tmp_path_factory) -> dict[str, Path]:
    """A folder of every kind that can be made without another library."""
    folder = tmp_path_factory.mktemp("kinds")
    blend = folder / "blend"
    light_blend().save(blend)
    reviews = synthetic_reviews(num_documents=30, seed=3)
    examples = [Example(review.text, review.label, "made", 1) for review in reviews]
    fit_naive_bayes(examples, examples, labels=labels_of(examples)).save(folder / "nbsvm")
    space = BaseSpace([load_run(shared_base)])
    tuned = fit_in_space(space, examples, None, labels=labels_of(examples))
    EmbeddingModel(tuned, space).save(folder / "embedding")
    return {
        "blend": blend,
        "linear": blend / "members" / "linear",
        "latent": blend / "members" / "latent",
        "folded": blend / "members" / "features",
        "embedding": folder / "embedding",
        "nbsvm": folder / "nbsvm",
        "classifier": write_run(folder / "run", preset="bert", objective="masked", pooling="first"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_the_protocol(folders, kind, tmp_path):
    classifier = load_classifier(folders[kind])
    assert classifier.kind == kind
    assert kind in classifier_kinds()
    probabilities_NC = classifier.predict_proba(TEXTS)
    assert probabilities_NC.shape == (3, len(classifier.labels))
    np.testing.assert_allclose(probabilities_NC.sum(axis=1), 1, atol=1e-6)
    assert classifier.predict_proba([]).shape == (0, len(classifier.labels))
    assert classifier.predict(TEXTS).tolist() == [
        classifier.labels[column] for column in probabilities_NC.argmax(axis=1)
    ]
    assert classifier.supports(Task())
    assert not classifier.supports(Task(has_pairs=True))
    with pytest.raises(DataError, match="pairs"):
        classifier.predict_proba([("a", "b")])
    names = [f"label {number}" for number in range(len(classifier.labels))]
    classifier.renamed(names).save(tmp_path / "copy")
    again = load_classifier(tmp_path / "copy")
    assert list(again.labels) == names
    np.testing.assert_allclose(again.predict_proba(TEXTS), probabilities_NC, atol=1e-6)
    assert all(list(member.labels) == names for member in again.members.values())
    assert run_fingerprint(tmp_path / "copy") != run_fingerprint(folders[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_scores_words(folders, kind):
    classifier = load_classifier(folders[kind])
    method, *others = classifier.attribution_methods(TEXTS[0])
    assert others == ([] if kind == "embedding" else ["leave-one-out"])
    spans = [(0, 1), (2, 8), (9, 15)]
    found = classifier.attributions(TEXTS[0], spans, target=0, method=method)
    assert found.scores_W.shape == (3,)
    assert np.isfinite(found.scores_W).all()


def test_networks_are_exported_to_other_formats_and_only_blends_have_members(folders):
    formats = {"classifier": ("hf", "onnx"), "embedding": ()}
    for kind, folder in folders.items():
        classifier = load_classifier(folder)
        is_network = kind == "classifier"
        assert (classifier.network is not None) == is_network
        assert classifier.export_formats == formats.get(kind, ("numpy",))
        assert bool(classifier.members) == (kind == "blend")


def test_embedding_classifier_can_be_moved_with_its_bases(folders, tmp_path):
    classifier = load_classifier(folders["embedding"])
    classifier.save(tmp_path / "alone")
    assert (tmp_path / "alone" / "bases" / "0" / "run.json").exists()
    shutil.move(tmp_path / "alone", tmp_path / "moved")
    again = load_classifier(tmp_path / "moved")
    np.testing.assert_allclose(again.predict_proba(TEXTS), classifier.predict_proba(TEXTS))


@pytest.fixture
def constant_kind():
    """A kind of classifier from outside, as a user would register it."""

    @register_classifier("constant")
    @dataclass(frozen=True)
    class Constant(Classifier):
        chances_C: np.ndarray

        @property
        def labels(self) -> tuple[str, ...]:
            return ("no", "yes")

        def predict_proba(self, contents, *, progress=None):
            return np.tile(self.chances_C, (len(contents), 1))

        def renamed(self, labels: Sequence[str]) -> "Constant":
            return self

        def save(self, run_dir: Path) -> None:
            save_member(run_dir, Stored({}, {"chances": self.chances_C}), kind=self.kind)

        @classmethod
        def load(cls, run_dir: Path) -> "Constant":
            return cls(load_member(run_dir, kind=cls.kind).arrays["chances"])

    yield Constant
    base._KINDS.unregister("constant")


def test_kind_from_outside_is_saved_and_loaded(constant_kind, tmp_path):
    constant_kind(np.array([0.25, 0.75])).save(tmp_path)
    classifier = load_classifier(tmp_path)
    assert isinstance(classifier, constant_kind)
    assert classifier.predict(["a", "b"]).tolist() == ["yes", "yes"]
    assert classifier.attribution_methods("a") == ("leave-one-out",)


def test_name_of_a_kind_is_taken_once(constant_kind):
    for name in ("constant", "blend"):
        with pytest.raises(ConfigError, match=f"'{name}'"):
            register_classifier(name)(constant_kind)
    assert constant_kind.kind == "constant"


@pytest.mark.parametrize(("kind", "name"), [("blend", "run.json"), ("linear", "member.json")])
def test_unknown_kind_and_newer_format_are_refused_by_name(folders, kind, name, tmp_path):
    folder = shutil.copytree(folders[kind], tmp_path / kind)
    change_facts(folder / name, kind="quantum")
    with pytest.raises(RunFolderError) as caught:
        load_classifier(folder)
    assert "'quantum'" in caught.value.problem
    assert str(folder) in caught.value.problem
    change_facts(folder / name, format_version=99)
    with pytest.raises(RunFolderError, match="format_version 99"):
        load_classifier(folder)


def test_folder_without_a_classifier_is_refused(shared_base, tmp_path):
    with pytest.raises(RunFolderError, match="holds a language-model, not a classifier"):
        load_classifier(shared_base)
    with pytest.raises(RunFolderError, match="nowhere"):
        load_classifier(tmp_path / "nowhere")


TRAINING = [
    *("regraft.training.pretraining", "regraft.training.loop", "regraft.training.objectives"),
    *("regraft.training.checkpoint", "regraft.training.optim", "regraft.training.masking"),
    *("regraft.classifiers.fitting", "regraft.classifiers.finetuning"),
    *("regraft.classifiers.fit_bases", "regraft.classifiers.estimator"),
]


@pytest.mark.parametrize("kind", ["blend", "classifier"])
def test_loading_and_asking_imports_no_training_code(folders, kind):
    code = (
        "import sys, regraft.classifiers.base as base\n"
        f"classifier = base.load_classifier({str(folders[kind])!r})\n"
        "classifier.predict_proba(['A superb camera'])\n"
        f"print([name for name in {TRAINING!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

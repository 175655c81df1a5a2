"""Arms are found by name, and anybody can register one."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, make_records, write_examples
from numpy.typing import NDArray

from regraft.comparison import ARM_KINDS, Arm, ArmData, ArmModel, Fitted, compare, register_arm
from regraft.comparison.arms import VectorArm, as_trained, parse_arms
from regraft.comparison.jobs import plan_cells
from regraft.comparison.network_arms import NetworkArm
from regraft.comparison.plan import Setup
from regraft.config.resolution import replace, resolve
from regraft.data.text.records import Labels
from regraft.errors import ConfigError
from regraft.runtime import Progress
from regraft.training import load_run


def test_arms_of_several_bases_have_their_names() -> None:
    arms = parse_arms(["pretrained", "pretrained:mini", "lstm", "latent"], bases=["mini"])
    assert [(arm.kind, arm.base, arm.is_random) for arm in arms] == [
        ("pretrained", "", True),
        ("pretrained", "mini", True),
        ("lstm", "", True),
        ("latent", "", False),
    ]
    assert [arm.info().control for arm in arms] == ["scratch", "scratch:mini", "", ""]
    assert arms[1].info().title == "the fine-tuned base mini"


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("pretrained:maxi", "mini"),
        ("linear:mini", "names a base"),
        ("pretrained:", "was not given"),
        ("nbsmv", "'nbsvm'"),
        (":mini", "There is no arm ''"),
        ("linear", "twice"),
    ],
)
def test_wrong_arm_is_refused(name: str, fact: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arms(["linear", name], bases=["mini"])
    assert fact in str(caught.value)


@pytest.mark.parametrize(
    ("stages", "pooling", "expected"),
    [
        ("language", "last", "mean"),
        ("words,documents+language", "last", "last"),
        ("words,documents", "attention", "mean"),
    ],
)
def test_frozen_base_is_read_by_the_vector_that_contrast_trained(
    shared_base: Path, stages: str, pooling: str, expected: str
) -> None:
    run = load_run(shared_base)
    settings = replace(replace(run.settings, "objective", stages=stages), "head", pooling=pooling)
    read = as_trained(dataclasses.replace(run, settings=settings))
    assert read.settings.head.pooling == expected


def test_arms_use_the_methods_that_suit_them() -> None:
    methods = {"train.base_rate": 0.1, "train.reinit_layers": 1, "head.start": "regression"}
    settings = resolve("finetune", overrides=methods)
    plain = resolve("finetune")
    pretrained, frozen, scratch, lstm = parse_arms(["pretrained", "frozen", "scratch", "lstm"])
    assert isinstance(pretrained, NetworkArm)
    assert pretrained.own_settings(settings) == settings
    for arm in (scratch, lstm):
        assert isinstance(arm, NetworkArm)
        assert arm.own_settings(settings) == plain
    assert isinstance(frozen, NetworkArm)
    del methods["train.reinit_layers"]
    assert frozen.own_settings(settings) == resolve("finetune", overrides=methods)


def test_fit_arm_needs_text() -> None:
    assert parse_arms(["fit"], has_text=True)
    with pytest.raises(ConfigError, match="--text"):
        parse_arms(["fit"], has_text=False)


def test_cells_come_seed_by_seed_and_small_sizes_first() -> None:
    arms = parse_arms(["scratch", "linear"])
    cells = plan_cells(arms, sizes=[8, 32], seeds=[4, 5], num_train=32)
    assert [(cell.arm, cell.num_labels, cell.seed) for cell in cells] == [
        ("scratch", 8, 4),
        ("linear", 8, 4),
        ("scratch", 32, 4),
        ("linear", 32, 4),
        ("scratch", 8, 5),
        ("linear", 8, 5),
        ("scratch", 32, 5),
    ]


class PriorModel:
    """Predicts the frequencies of the classes."""

    def __init__(self, prior: list[float]) -> None:
        self.prior = prior

    def predict_proba(self, texts: Sequence[str], /) -> NDArray[np.float64]:
        return np.tile(np.array(self.prior), (len(texts), 1))

    def save(self, folder: Path, /) -> None:
        folder.mkdir(parents=True)
        (folder / "prior.json").write_text(json.dumps(self.prior))


@pytest.fixture
def prior_arm() -> Iterator[type[Arm]]:
    @register_arm("prior")
    class PriorArm(Arm):
        title, description = "the prior", "frequencies of the classes"

        def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
            counts = np.bincount(data.labels.targets(data.train), minlength=len(data.labels))
            return Fitted(PriorModel((counts / counts.sum()).tolist()))

        def load(self, folder: Path, **unused: Any) -> ArmModel:
            return PriorModel(json.loads((folder / "prior.json").read_text()))

    yield PriorArm
    ARM_KINDS.unregister("prior")


def test_registered_arm_takes_part(prior_arm: type[Arm], shared_base: Path, tmp_path: Path) -> None:
    files = {
        name: write_examples(tmp_path / f"{name}.csv", 16, seed=seed)
        for seed, name in enumerate(("train", "valid", "test"), start=3)
    }
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 1})
    arms = ["linear", "prior"]
    found = compare(base=shared_base, **files, settings=settings, arms=arms, out=tmp_path / "out")
    prior = found.arms[1]
    assert (prior.name, prior.role, prior.num_seeds) == ("prior", "rival", 1)
    assert prior.description == "frequencies of the classes"
    assert prior.seconds > 0
    assert [(test.first, test.second) for test in found.tests] == [("linear", "prior")]


def test_vectors_of_unknown_cost_are_made_again(tmp_path: Path) -> None:
    class LengthArm(VectorArm):
        title = description = "the length of a text"
        num_encoded = 0

        def encode(self, texts: Sequence[str], **unused: Any) -> NDArray[np.float64]:
            self.num_encoded += len(texts)
            return np.array([[len(text)] for text in texts], dtype=np.float64)

    train, valid = make_records(6, seed=3), make_records(4, seed=4)
    setup = Setup({}, Labels(("negative", "positive")), train, valid, {})
    arm = LengthArm("length")
    made = arm.prepare(setup, shared_dir=tmp_path)
    kept = arm.prepare(setup, shared_dir=tmp_path)
    assert arm.num_encoded == 10
    assert kept.valid.tolist() == made.valid.tolist()
    (tmp_path / "cost.json").write_text("[]")
    assert arm.prepare(setup, shared_dir=tmp_path).valid.tolist() == made.valid.tolist()
    assert arm.num_encoded == 20


def test_two_arms_of_one_name_are_refused(prior_arm: type[Arm]) -> None:
    with pytest.raises(ConfigError, match="'prior'"):
        register_arm("prior")(prior_arm)
    with pytest.raises(ConfigError, match="'linear'"):
        register_arm("linear")(prior_arm)

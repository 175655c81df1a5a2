"""The arms: named, planned, and kept on disk; whatever was trained before stays trained."""

import dataclasses
from pathlib import Path

import pytest
from conftest import TINY, make_examples

from regraft.arms import (
    ArmsFolder,
    Cell,
    Task,
    TrainedCell,
    build_task,
    parse_arms,
    plan_cells,
    task_facts,
)
from regraft.config import resolve
from regraft.errors import ConfigError, RunFolderError
from regraft.finetune import start_from_base
from regraft.text import Example, Labels

SETTINGS = resolve("finetune", overrides={**TINY, "train.epochs": 2})
RUN = TrainedCell(Cell("pretrained:mini", 16, 1), (0.5, 0.75), 1.5, 2.0, {"learning rate": 0.1})


def examples(num_examples: int, *, seed: int) -> list[Example]:
    made = make_examples(num_examples, seed=seed)
    return [Example(text, label, "train.csv", row) for row, (text, label) in enumerate(made, 2)]


@pytest.fixture(scope="module")
def task(shared_base: Path) -> Task:
    start = start_from_base(shared_base, settings=SETTINGS)
    return build_task({"": start}, train=examples(32, seed=3), valid=examples(16, seed=4))


def test_task_has_the_rows_and_labels_of_its_examples(task: Task) -> None:
    rows, valid_rows = task.rows[""]
    assert task.labels == Labels(("negative", "positive"))
    assert (len(rows.lengths), len(valid_rows.lengths)) == (32, 16)
    assert task.fingerprints.keys() == {"train", "valid", "base", "tokenizer"}
    assert "unlabelled" in dataclasses.replace(task, text_paths=(Path("a"),)).fingerprints


def test_arms_of_several_bases_have_their_names() -> None:
    arms = parse_arms(["pretrained", "pretrained:mini", "lstm", "latent"], bases=["mini"])
    assert [(arm.kind, arm.base, arm.is_neural) for arm in arms] == [
        ("pretrained", "", True),
        ("pretrained", "mini", True),
        ("lstm", "", True),
        ("latent", "", False),
    ]


@pytest.mark.parametrize(
    "name", ["pretrained:maxi", "linear:mini", "pretrained:", "nbsmv", ":mini"]
)
def test_unknown_arm_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Cannot compare the arms 'linear', '{name}'"):
        parse_arms(["linear", name], bases=["mini"])


def test_cells_come_seed_by_seed_and_the_cheapest_first() -> None:
    arms = parse_arms(["scratch", "linear"], bases=[])
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


def test_finished_cell_is_found_again(tmp_path: Path) -> None:
    folder = ArmsFolder(tmp_path)
    folder.sign(RUN)
    assert folder.finished() == {}
    folder.save_weights(RUN.cell, b"weights")
    assert folder.finished() == {RUN.cell: RUN}
    assert folder.weights_path(RUN.cell).parent.name == "pretrained+mini"


def test_cell_without_its_sign_is_not_finished(tmp_path: Path) -> None:
    folder = ArmsFolder(tmp_path)
    folder.save_weights(RUN.cell, b"weights")
    assert folder.finished() == {}
    folder.sign(RUN)
    folder.weights_path(RUN.cell).with_suffix(".json").write_text("{")
    assert folder.finished() == {}
    folder.discard()
    assert not folder.path.exists()


def test_second_process_is_refused(task: Task, tmp_path: Path) -> None:
    facts, folder = task_facts(task, grid="none"), ArmsFolder(tmp_path)
    with folder.opened(facts):
        with (
            pytest.raises(RunFolderError, match="Another process is working on the comparison in"),
            ArmsFolder(tmp_path).opened(facts),
        ):
            pass
        assert (folder.path / "task.json").exists()
    assert not folder.path.exists()


def test_changes_are_named(task: Task, tmp_path: Path) -> None:
    folder = ArmsFolder(tmp_path)
    with folder.opened(task_facts(task, grid="none")):
        folder.save_weights(RUN.cell, b"weights")
        folder.sign(RUN)
    other = dataclasses.replace(task, valid=task.train)
    with (
        pytest.raises(RunFolderError) as caught,
        folder.opened(task_facts(other, grid="small")),
    ):
        pass
    assert caught.value.problem == (
        f"{tmp_path} was started otherwise: grid was 'none' and is 'small'; valid has changed."
    )
    assert folder.finished() == {RUN.cell: RUN}


def test_vectors_that_a_killed_process_left_are_not_taken_for_others(
    task: Task, tmp_path: Path
) -> None:
    folder = ArmsFolder(tmp_path / "out")
    stale = folder.shared_path("latent") / "vectors.safetensors"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another text")
    with folder.opened(task_facts(task, grid="none")):
        assert not stale.exists()


def test_comparison_is_not_resumed_without_the_text_that_it_began_with(
    task: Task, tmp_path: Path
) -> None:
    folder = ArmsFolder(tmp_path / "out")
    text = tmp_path / "text.txt"
    text.write_text("a text\n")
    began = task_facts(dataclasses.replace(task, text_paths=(text,)), grid="none")
    with folder.opened(began):
        folder.save_weights(RUN.cell, b"weights")
        folder.sign(RUN)
    with (
        pytest.raises(RunFolderError, match="unlabelled has changed"),
        folder.opened(task_facts(task, grid="none")),
    ):
        pass

"""The folder of a comparison: finished runs stay finished."""

import dataclasses
from pathlib import Path

import pytest
from conftest import TINY, make_records

from regraft.classifiers.starts import start_from_base
from regraft.comparison.folder import ArmsFolder, TrainedCell, setup_facts
from regraft.comparison.plan import Cell, Setup, build_setup
from regraft.config.resolution import resolve
from regraft.data.text.records import Labels
from regraft.errors import RunFolderError

SETTINGS = resolve("finetune", overrides={**TINY, "train.epochs": 2})
RUN = TrainedCell(Cell("pretrained:mini", 16, 1), (0.5, 0.75), 1.5, 2.0, {"learning rate": 0.1})


def save_model(folder: ArmsFolder) -> None:
    folder.model_dir(RUN.cell).mkdir(parents=True)


@pytest.fixture(scope="module")
def setup(shared_base: Path) -> Setup:
    start = start_from_base(shared_base, settings=SETTINGS)
    return build_setup({"": start}, train=make_records(32, seed=3), valid=make_records(16, seed=4))


def test_setup_has_the_rows_and_labels_of_its_examples(setup: Setup) -> None:
    rows, valid_rows = setup.rows[""]
    assert setup.labels == Labels(("negative", "positive"))
    assert (len(rows.lengths), len(valid_rows.lengths)) == (32, 16)
    assert setup.fingerprints.keys() == {"train", "valid", "base", "tokenizer"}
    assert "unlabelled" in dataclasses.replace(setup, text_paths=(Path("a"),)).fingerprints


def test_finished_cell_is_found_again(tmp_path: Path) -> None:
    folder = ArmsFolder(tmp_path)
    folder.mark_finished(RUN)
    assert folder.finished() == {}
    save_model(folder)
    assert folder.finished() == {RUN.cell: RUN}
    assert folder.model_dir(RUN.cell).parent.name == "pretrained+mini"


def test_cell_without_its_sign_is_not_finished(tmp_path: Path) -> None:
    folder = ArmsFolder(tmp_path)
    save_model(folder)
    assert folder.finished() == {}
    folder.mark_finished(RUN)
    folder.model_dir(RUN.cell).with_suffix(".json").write_text("{")
    assert folder.finished() == {}
    folder.discard()
    assert not folder.path.exists()


def test_second_process_is_refused(setup: Setup, tmp_path: Path) -> None:
    facts, folder = setup_facts(setup), ArmsFolder(tmp_path)
    with folder.opened(facts):
        with (
            pytest.raises(RunFolderError, match="Another process is working on the comparison in"),
            ArmsFolder(tmp_path).opened(facts),
        ):
            pass
        assert (folder.path / "setup.json").exists()
    assert not folder.path.exists()


def test_changes_are_named(setup: Setup, tmp_path: Path) -> None:
    folder = ArmsFolder(tmp_path)
    with folder.opened(setup_facts(setup)):
        save_model(folder)
        folder.mark_finished(RUN)
    other = dataclasses.replace(setup, valid=setup.train, grid="small")
    with (
        pytest.raises(RunFolderError) as caught,
        folder.opened(setup_facts(other)),
    ):
        pass
    problem = caught.value.problem
    assert problem.endswith(": grid was 'none' and is 'small'; valid has changed.")
    assert str(tmp_path) in problem
    assert folder.finished() == {RUN.cell: RUN}


def test_vectors_that_a_killed_process_left_are_not_taken_for_others(
    setup: Setup, tmp_path: Path
) -> None:
    folder = ArmsFolder(tmp_path / "out")
    stale = folder.shared_dir("latent") / "vectors.safetensors"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another text")
    with folder.opened(setup_facts(setup)):
        assert not stale.exists()


def test_comparison_is_not_resumed_without_the_text_that_it_began_with(
    setup: Setup, tmp_path: Path
) -> None:
    folder = ArmsFolder(tmp_path / "out")
    text = tmp_path / "text.txt"
    text.write_text("a text\n")
    began = setup_facts(dataclasses.replace(setup, text_paths=(text,)))
    with folder.opened(began):
        save_model(folder)
        folder.mark_finished(RUN)
    with (
        pytest.raises(RunFolderError, match="unlabelled has changed"),
        folder.opened(setup_facts(setup)),
    ):
        pass

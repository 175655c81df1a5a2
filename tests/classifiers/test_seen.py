"""A run knows the files it was made from."""

from pathlib import Path

from conftest import TINY, write_examples

from regraft.classifiers.finetuning import finetune
from regraft.classifiers.seen import part_in_training, seen_warning
from regraft.config.resolution import resolve
from regraft.data.text.readers import load_examples

DATA = resolve("finetune").data


def test_run_knows_the_file_it_was_trained_on(shared_classifier: Path, tmp_path: Path) -> None:
    train = shared_classifier.parent / "train.csv"
    assert part_in_training(shared_classifier, load_examples(train, data=DATA)) == "train"
    copy = tmp_path / "named otherwise.csv"
    copy.write_bytes(train.read_bytes())
    assert part_in_training(shared_classifier, load_examples(copy, data=DATA)) == "train"
    other = write_examples(tmp_path / "test.csv", 32, seed=4)
    examples = load_examples(other, data=DATA)
    assert part_in_training(shared_classifier, examples) is None
    assert part_in_training(tmp_path, examples) is None, "without a run.json nothing is known"


def test_run_knows_the_file_it_was_watched_on(shared_base: Path, tmp_path: Path) -> None:
    files = {
        name: write_examples(tmp_path / f"{name}.csv", 12, seed=n) for n, name in enumerate("abc")
    }
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 1})
    run = tmp_path / "run"
    finetune(base=shared_base, train=files["a"], valid=files["b"], out=run, settings=settings)
    found = [part_in_training(run, load_examples(file, data=DATA)) for file in files.values()]
    assert found == ["train", "valid", None]
    warnings = [
        seen_warning(run, file, load_examples(file, data=DATA)) or "" for file in files.values()
    ]
    assert [f"trained on {files['a']}" in warnings[0], f"selected on {files['b']}" in warnings[1]]
    assert warnings[2] == ""

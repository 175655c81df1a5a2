"""Every JSON value of a run folder in turn is replaced by hostile ones: refused, or harmless.

Once as a careless hand does it, which the checksums find; once by someone who computes new
checksums, where only what the parts mean is left to check.
"""

import json
import shutil
from pathlib import Path

import pytest
from chaos.mutation import json_files, mutate
from commands import refusal, run
from tampering import accept_files, change_facts
from tiny_blends import blend_dir

from regraft.classifiers.base import load_classifier
from regraft.data.tokens.tokenizer import load_tokenizer
from regraft.errors import DataError, RunFolderError


@pytest.fixture(scope="module")
def blend(tmp_path_factory) -> Path:
    return blend_dir(tmp_path_factory, num_labels=2)


@pytest.mark.slow
def test_every_careless_edit_is_refused(blend, tmp_path):
    counts = mutate(blend, tmp_path / "run", with_new_checksums=False, every=97)
    assert counts.refused > 5
    assert counts.harmless == counts.changed == 0


@pytest.mark.slow
def test_every_edit_with_new_checksums_is_refused_or_gives_valid_answers(blend, tmp_path):
    counts = mutate(blend, tmp_path / "run", with_new_checksums=True, every=397)
    assert counts.tried > 2
    assert counts.crashes == []


@pytest.mark.parametrize("name", ["kind", "status"])
def test_kind_that_is_no_text_is_refused(blend, tmp_path, name):
    folder = shutil.copytree(blend, tmp_path / "run")
    change_facts(folder / "run.json", **{name: {}})
    with pytest.raises(RunFolderError, match=f"{name} is no text"):
        load_classifier(folder)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"temperature": 0}, "holds no weights of a blend"),
        ({"temperature": -1.0}, "holds no weights of a blend"),
        ({"temperature": 1e999}, "is not JSON"),
        ({"temperature": 1e9}, "holds no weights of a blend"),
        ({"temperature": True}, "holds no weights of a blend"),
        ({"priors": "../../etc"}, "holds no weights of a blend"),
        ({"priors": [0.5]}, "holds no weights of a blend"),
        ({"priors": [1.0, 0]}, "holds no weights of a blend"),
        ({"weights": {"linear": 10.0}}, "holds no weights of a blend"),
        ({"weights": {"../../linear": 1.0}}, "holds no weights of a blend"),
        ({"weights": {"nowhere": 1.0}}, "nowhere is missing"),
    ],
)
def test_weights_and_temperature_that_cannot_be_are_refused(blend, tmp_path, result, problem):
    folder = shutil.copytree(blend, tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    change_facts(folder / "run.json", result={**facts["result"], **result})
    with pytest.raises(RunFolderError, match=problem):
        load_classifier(folder)


@pytest.mark.parametrize("max_length", [-1, 0, 1e308, 10**12])
def test_length_of_windows_that_cannot_be_is_refused(blend, tmp_path, max_length):
    folder = shutil.copytree(blend, tmp_path / "run")
    change_facts(folder / "members" / "features" / "member.json", max_length=max_length)
    accept_files(folder)
    with pytest.raises(RunFolderError, match="max_length is"):
        load_classifier(folder)


def test_labels_in_another_order_are_refused(blend, tmp_path):
    folder = shutil.copytree(blend, tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    change_facts(folder / "run.json", labels=facts["labels"][::-1])
    with pytest.raises(RunFolderError, match="has other labels than"):
        load_classifier(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "1" * 10_000 + "}", '{"a": NaN}'])
def test_json_that_breaks_readers_is_refused_in_every_file(text, blend, tmp_path):
    folder = shutil.copytree(blend, tmp_path / "run")
    for path in json_files(folder):
        before = path.read_text()
        path.write_text(text)
        with pytest.raises(RunFolderError, match=path.name):
            load_classifier(folder)
        path.write_text(before)


def test_file_that_run_json_does_not_list_is_refused(shared_classifier, blend, tmp_path):
    for number, run_dir in enumerate((shared_classifier, blend)):
        folder = shutil.copytree(run_dir, tmp_path / str(number))
        # Loading reads it if it is there, and it changes which token is the unknown one.
        (folder / "tokenizer_config.json").write_text('{"unk_token": "the"}')
        with pytest.raises(RunFolderError, match=r"has no checksum of tokenizer_config\.json"):
            load_classifier(folder)


def test_tokenizer_of_a_run_is_read_as_it_was_written(shared_classifier, tmp_path):
    folder = shutil.copytree(shared_classifier, tmp_path / "run")
    load_tokenizer(folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"id": 0', '"id":  0'))
    with pytest.raises(RunFolderError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda model: model["vocab"].update(a=0), "two tokens have one id"),
        (lambda model: model.update(continuing_subword_prefix="../../etc"), "out of range"),
    ],
)
def test_tokenizer_with_one_id_twice_or_that_makes_the_library_panic_is_refused(
    change, problem, shared_classifier, tmp_path, capfd
):
    values = json.loads((shared_classifier / "tokenizer.json").read_text())
    change(values["model"])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=rf"{path} is not a tokenizer: .*{problem}"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 10**9},
        {"num_layers": 10**6},
        {"feedforward_width": 10**9},
        {"max_positions": 10**9},
    ],
)
def test_model_larger_than_its_weights_is_refused_before_it_is_built(
    changes, shared_classifier, tmp_path
):
    folder = shutil.copytree(shared_classifier, tmp_path / "run")
    settings = json.loads((folder / "config.json").read_text())
    settings["model"].update(changes)
    (folder / "config.json").write_text(json.dumps(settings))
    accept_files(folder)
    with pytest.raises(RunFolderError, match=r"config\.json"):
        load_classifier(folder)


def test_verify_names_every_damaged_file(shared_classifier, tmp_path):
    folder = shutil.copytree(shared_classifier, tmp_path / "run")
    result = run("verify", folder)
    assert result.exit_code == 0, result.output
    assert f"{folder} is whole: 4 files" in result.stdout
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text("{}")
    result = run("verify", folder)
    assert result.exit_code == 1
    assert f"{folder / 'tokenizer.json'} is missing" in result.stdout
    assert f"{folder / 'config.json'} is damaged" in result.stdout
    problems = json.loads(run("verify", folder, "--json").stdout)["problems"]
    assert set(problems) == {"tokenizer.json", "config.json"}


def test_signature_says_who_wrote_a_folder(shared_classifier, tmp_path):
    folder = shutil.copytree(shared_classifier, tmp_path / "run")
    keys = [tmp_path / "mine", tmp_path / "other"]
    for number, path in enumerate(keys):
        path.write_bytes(bytes([number]) * 32)
    assert refusal(run("verify", folder, "--key", keys[0])).startswith(f"{folder} is not signed.")
    assert run("verify", folder, "--key", keys[0], "--sign").exit_code == 0
    assert "the signature is right" in run("verify", folder, "--key", keys[0]).stdout
    assert "The signature" in refusal(run("verify", folder, "--key", keys[1]))
    change_facts(folder / "run.json", created="yesterday")  # new checksums, but no key
    assert run("verify", folder).exit_code == 0
    assert "The signature" in refusal(run("verify", folder, "--key", keys[0]))


def test_key_that_is_too_short_is_refused(shared_classifier, tmp_path):
    (tmp_path / "key").write_bytes(b"secret")
    message = refusal(run("verify", shared_classifier, "--key", tmp_path / "key"))
    assert "has 6 bytes" in message
    assert "needs a key" in refusal(run("verify", shared_classifier, "--sign"))

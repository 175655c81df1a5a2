"""Model cards: made from the run, readable by the hub, with code that runs."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from random_runs import tiny_tokenizer, write_run

from regraft.export.mapping import translations
from regraft.export.model_card import huggingface_card, int8_rows, onnx_card
from regraft.export.parity import Int8Cost, Parity
from regraft.training.loaded_run import LoadedRun, load_run

FINETUNED = {
    "num_train": 1360,
    "num_valid": 240,
    "valid_accuracy": [0.5, 0.85],
    "cut_share": 0.125,
    "seconds": 3.0,
}
PRETRAINED = {
    "num_documents": 60,
    "num_tokens": 12345,
    "num_steps": 20,
    "valid_loss": 4.321,
    "unigram_entropy": 4.0,
    "bits_per_byte": 1.5,
    "beats_unigram": False,
}
PARITY = Parity("Model", {"no padding": 2e-6, "left": None}, num_texts=8, text="A.", vector=(0.25,))
COST = Int8Cost(
    num_texts=200,
    agreement=0.995,
    largest_difference=0.0312,
    speed_ratio=1.4,
    num_bytes=300,
    num_bytes_fp32=1000,
    accuracy=0.83,
    accuracy_fp32=0.8325,
)


def make_run(folder: Path, *, objective: str, pooling: str | None, **more: Any) -> LoadedRun:
    preset = "lab" if objective == "causal" else "bert"
    return load_run(
        write_run(
            folder,
            preset=preset,
            objective=objective,
            pooling=pooling,
            tokenizer=tiny_tokenizer(),
            **more,
        )
    )


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> LoadedRun:
    folder = tmp_path_factory.mktemp("card") / "private" / "run"
    run = make_run(folder, objective="causal", pooling="last", result=FINETUNED)
    base = {"run_dir": "/home/someone/secret/base"}
    return dataclasses.replace(run, info=dataclasses.replace(run.info, base=base))


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> LoadedRun:
    folder = tmp_path_factory.mktemp("card") / "run"
    return make_run(folder, objective="bert", pooling=None, result=PRETRAINED)


def card_of(run: LoadedRun) -> str:
    parts = translations(run)
    return huggingface_card(run, parts=parts, parities=[PARITY] * len(parts), name="reviews")


def test_hub_reads_the_front_matter(classifier):
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard(card_of(classifier)).data
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "text-classification"
    assert data.tags == ["regraft"]


def test_accuracy_has_its_interval_and_its_caveat(classifier):
    card = card_of(classifier)
    row = re.search(r"accuracy on valid \| 85.0 % \| ([\d.]+) to ([\d.]+) % \| 240 examples", card)
    assert row is not None
    # Half-width of a share of 0.85 over 240: about 4.5 points.
    assert 79 < float(row[1]) < 82
    assert 88 < float(row[2]) < 91
    assert "One training, one seed." in card


def test_accuracy_is_that_of_the_epoch_whose_weights_were_kept(classifier):
    result = {**classifier.info.result, "valid_accuracy": [0.5, 0.85, 0.7], "best_epoch": 1}
    info = dataclasses.replace(classifier.info, result=result)
    assert "accuracy on valid | 85.0 %" in card_of(dataclasses.replace(classifier, info=info))


def test_card_says_whether_probabilities_are_calibrated(classifier, base):
    assert "Probabilities are as training left them, not calibrated." in card_of(classifier)
    info = dataclasses.replace(classifier.info, temperature=1.375)
    run = dataclasses.replace(classifier, info=info)
    told = "are calibrated: a temperature of 1.38, fitted on valid, is part of the weights."
    assert told in card_of(run)
    assert told in onnx_card(run, parity=PARITY, name="reviews", int8=None)
    assert "Probabilities" not in card_of(base)


def test_card_tells_data_recipe_and_parity(classifier):
    card = card_of(classifier)
    assert "1,360 examples to train on, 240 held out; 12.5 % of the training texts were cut" in card
    assert "| text | `0123456789abcdef` |" in card
    assert "| head.pooling | last |" in card
    assert "| objective.kind | causal |" in card
    assert "objective.mask_rate" not in card
    assert "| Model | no padding | 2.0e-06 |" in card
    assert "| Model | left | cannot be expressed |" in card
    assert 'for "A." the first scores are 0.25000' in card
    assert "OPTForSequenceClassification" in card


def test_card_keeps_the_machine_to_itself(classifier):
    card = card_of(classifier)
    assert "Start: base." in card
    assert "secret" not in card
    assert str(classifier.run_dir.parent) not in card


def test_base_that_learned_too_little_says_so(base):
    card = card_of(base)
    assert "| loss on held-out text, nats a token | 4.3210 |" in card
    assert "| unigram entropy, the line to beat | 4.0000 |" in card
    assert "It is no better than word frequencies: trained too little." in card
    assert "60 documents; 12,345 tokens read in 20 steps." in card
    assert 'pipeline_tag: "fill-mask"' in card
    assert "head.pooling" not in card


def test_limits_name_what_transformers_does_otherwise(classifier, base):
    assert "only where `truncation=True` is passed" in card_of(classifier)
    assert "Pad on the right: the class reads the first column" in card_of(base)
    assert "Names of special tokens, such as `<mask>`" in card_of(base)


def test_run_without_scores_has_a_card(tmp_path):
    card = card_of(make_run(tmp_path / "run", objective="causal", pooling="last"))
    assert "This run keeps none." in card
    assert "The run keeps no counts of its data." in card
    assert "objective." not in card, "a classifier from scratch had no objective before"


def test_onnx_card_tells_what_int8_cost(classifier):
    card = onnx_card(classifier, parity=PARITY, name="reviews", int8=COST)
    assert "| accuracy | 83.00 %, was 83.25 %: +0.25 points lost |" in card
    assert "| same answers | 99.50 % on 200 texts |" in card
    assert "| speed | 1.40 times |" in card
    assert "any length up to 40" in card
    assert "## int8" not in onnx_card(classifier, parity=PARITY, name="reviews", int8=None)


def test_onnx_card_of_pairs_says_what_is_missing(base):
    card = onnx_card(base, parity=PARITY, name="base", int8=None)
    assert "The scores of sentence pairs are not in this export" in card


def test_without_data_no_accuracy_is_told():
    rows = int8_rows(dataclasses.replace(COST, accuracy=None, accuracy_fp32=None))
    assert [name for name, _ in rows] == [
        "same answers",
        "largest difference of a score",
        "speed",
        "size",
    ]


@pytest.mark.parametrize("seen", [None, "train"])
def test_card_of_a_student_says_whether_its_teacher_knew_the_examples(classifier, seen):
    result = {
        **{"agreement": [0.4, 0.9], "num_held_out": 100, "num_texts": 900, "cut_share": 0.0},
        **{"accuracy": 0.9, "teacher_accuracy": 0.95, "num_examples": 200, "seen": seen},
    }
    info = dataclasses.replace(classifier.info, result=result)
    card = card_of(dataclasses.replace(classifier, info=info))
    assert "| accuracy of its teacher | 95.0 %" in card
    assert ("The teacher was made from these examples" in card) == (seen is not None)

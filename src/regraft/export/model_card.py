"""The model card (README.md) of an export, from the run itself, with the hub's front matter.

Paths of the user's machine stay out of it.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from regraft.config import OF_FINETUNING
from regraft.export.common import reads_pairs
from regraft.export.mapping import Translation
from regraft.export.parity import TOLERANCE, Int8Cost, Parity, parity_rows
from regraft.runtime import in_percent
from regraft.stats import accuracy_interval
from regraft.training import LoadedRun

# Settings of fine-tuning only.
_METHODS = tuple(f"train.{name}" for name in OF_FINETUNING)
# The settings of a training that readers ask for first.
_RECIPE = (
    *("objective.kind", "objective.mask_rate", "objective.masking"),
    *("model.attention", "model.width", "model.num_layers", "model.num_heads"),
    *("model.feedforward_width", "model.dropout", "head.pooling"),
    *("data.max_length", "data.packing", "train.optimizer", "train.lr", "train.schedule"),
    *("train.batch_size", "train.steps", "train.epochs", "train.minutes"),
    *_METHODS,
    "train.seed",
)
_ONLY_CLASSIFIER = ("head.", *_METHODS)
_ONLY_LANGUAGE_MODEL = ("data.packing", "objective.mask")


def huggingface_card(
    run: LoadedRun, *, parts: Sequence[Translation], parities: Sequence[Parity], name: str
) -> str:
    """The card of a Hugging Face folder."""
    main = parts[0]
    front = {"library_name": "transformers", "pipeline_tag": main.task, "tags": ["regraft"]}
    intro = f"transformers loads it as `{main.architecture}`, without any other code."
    others = [
        f"`{part.folder}/` holds a `{part.architecture}` ({_FOLDERS[part.folder]})."
        for part in parts[1:]
    ]
    limits = [*(_left_padding(part) for part in parts), main.note]
    if main.task == "text-classification":
        limits.insert(0, _NOT_CUT)
    if any(part.task == "fill-mask" for part in parts):
        limits.append(_MASK_IS_READ)
    return "\n".join(
        [
            *_front_matter(front),
            f"# {name}",
            "",
            " ".join([_what(run), intro, *others]),
            "",
            "## Use",
            "",
            *_python(_use(run, task=main.task)),
            *_story(run, limits=limits),
            *_parity_lines(parities, other="the loaded export"),
            *_versions(run, others=("transformers",)),
        ]
    )


def onnx_card(run: LoadedRun, *, parity: Parity, name: str, int8: Int8Cost | None) -> str:
    """The card of an ONNX folder."""
    is_classifier = run.info.kind == "classifier"
    front = {"library_name": "onnx", "tags": ["regraft", "onnx"]}
    if is_classifier:
        front["pipeline_tag"] = "text-classification"
    limits = [
        "`encode_special_tokens` is not kept in tokenizer.json: set it as above, or a text with "
        "`</s>` in it is read differently."
    ]
    if run.settings.objective.traits.head == "pairs" and not is_classifier:
        limits.append("The scores of sentence pairs are not in this export, nor token types.")
    lines = [
        *_front_matter(front),
        f"# {name}",
        "",
        f"{_what(run)} `model.onnx` reads {_input_names(run)} of any batch and any "
        f"length up to {run.settings.model.max_positions:,}, and gives `logits`.",
        "",
        "## Use",
        "",
        *_python(_onnx_use(run) + (_onnx_answers(run) if is_classifier else _ONNX_SHAPE)),
        *_story(run, limits=limits),
        *_parity_lines([parity], other="onnxruntime"),
    ]
    if int8 is not None:
        lines += ["", "## int8", "", "`model.int8.onnx` has its weights in eight bits.", ""]
        lines += _table(("against fp32", "measured"), int8_rows(int8))
        lines += ["", _SEEN_BY_MODEL] if int8.is_seen else []
    return "\n".join([*lines, *_versions(run, others=("onnx", "onnxruntime"))])


def int8_rows(cost: Int8Cost) -> list[tuple[str, str]]:
    """What int8 costs and gains, in words."""
    rows = [
        ("same answers", f"{in_percent(cost.agreement, digits=2)} on {cost.num_texts:,} texts"),
        ("largest difference of a score", f"{cost.largest_difference:.2g}"),
        ("speed", f"{cost.speed_ratio:.2f} times"),
        ("size", f"{cost.num_bytes / cost.num_bytes_fp32:.2f} times"),
    ]
    if cost.accuracy is not None and cost.accuracy_fp32 is not None:
        lost = (cost.accuracy_fp32 - cost.accuracy) * 100
        before, after = (in_percent(each, digits=2) for each in (cost.accuracy_fp32, cost.accuracy))
        change = f"{after}, was {before}: {lost:+.2f} points lost"
        rows.insert(0, ("accuracy", change))
    return rows


_FOLDERS = {
    "causal": "the same weights, reading to the left only: it continues texts",
    "generator": "it proposed the tokens that this model had to find",
}
_NOT_CUT = (
    "transformers cuts a longer text only where `truncation=True` is passed; without it, scores of "
    "such texts differ from regraft's, or there is an error."
)
_MASK_IS_READ = (
    "Names of special tokens, such as `<mask>`, are read as these tokens; regraft itself reads all "
    "but `<mask>` as text."
)
_USES = {
    "text-classification": """\
from transformers import pipeline

classify = pipeline("text-classification", model=".", truncation=True)
print(classify(["What a lovely story.", "A dull book."]))
""",
    "text-generation": """\
from transformers import pipeline

write = pipeline("text-generation", model=".")
print(write("Once upon a time", max_new_tokens=20))
""",
    "fill-mask": """\
from transformers import pipeline

fill = pipeline("fill-mask", model=".")
print(fill("What a <mask> story."))
""",
    "feature-extraction": """\
from transformers import AutoModelForPreTraining, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForPreTraining.from_pretrained(".")
scores = model(**tokenizer("What a lovely story.", return_tensors="pt")).logits
print(scores > 0)  # is the token another one than was written?
""",
}
_PAIR_USE = """\
from transformers import pipeline

classify = pipeline("text-classification", model=".", truncation=True)
print(classify([{"text": "Where is the station?", "text_pair": "Behind the church."}]))
"""
_ONNX_USE = """\
import json
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")  # cuts and pads as regraft does
tokenizer.encode_special_tokens = True  # in a text "</s>" is text
rows = tokenizer.encode_batch(["What a lovely story.", "A dull book."])
session = onnxruntime.InferenceSession("model.onnx")
(logits,) = session.run(
    ["logits"],
    {
        "input_ids": np.array([row.ids for row in rows]),
        "attention_mask": np.array([row.attention_mask for row in rows]),
    },
)
"""
_ONNX_LABELS = """\
labels = json.loads(Path("config.json").read_text())["labels"]
print([labels[best] for best in logits.argmax(axis=1)])
"""
_ONNX_SETS = """\
config = json.loads(Path("config.json").read_text())
chances = 1 / (1 + np.exp(-logits.astype(float)))
answers = chances >= np.array(config["thresholds"])
print([[label for label, yes in zip(config["labels"], row) if yes] for row in answers])
"""
_ONNX_SHAPE = "print(logits.shape)\n"


def _input_names(run: LoadedRun) -> str:
    has_types = reads_pairs(run) and run.settings.model.traits.has_token_types
    names = ["`input_ids`", *(["`token_type_ids`"] if has_types else []), "`attention_mask`"]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _use(run: LoadedRun, *, task: str) -> str:
    code = _PAIR_USE if reads_pairs(run) else _USES[task]
    # With several labels, all probabilities and not the best alone.
    return code.replace("truncation=True", "truncation=True, top_k=None") if _sets(run) else code


def _sets(run: LoadedRun) -> bool:
    """Does it give any number of labels?"""
    return bool(run.info.thresholds)


def _onnx_answers(run: LoadedRun) -> str:
    return _ONNX_SETS if _sets(run) else _ONNX_LABELS


def _onnx_use(run: LoadedRun) -> str:
    if not reads_pairs(run):
        return _ONNX_USE
    code = _ONNX_USE.replace(
        '["What a lovely story.", "A dull book."]',
        '[("Where is the station?", "Behind the church.")]',
    )
    if not run.settings.model.traits.has_token_types:
        return code
    types = '        "token_type_ids": np.array([row.type_ids for row in rows]),\n'
    return code.replace('        "attention_mask"', f'{types}        "attention_mask"')


def _front_matter(values: Mapping[str, Any]) -> list[str]:
    """JSON is YAML: no name needs quotes of its own."""
    return ["---", *(f"{key}: {json.dumps(value)}" for key, value in values.items()), "---", ""]


def _what(run: LoadedRun) -> str:
    family = run.settings.model.family
    num_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    size = f"{num_parameters:,} parameters"
    if run.info.kind == "classifier":
        labels = ", ".join(f"`{label}`" for label in run.info.labels)
        start = "from scratch" if run.info.base is None else "on a pre-trained base"
        what = "pairs of texts" if reads_pairs(run) else "texts"
        labels = f"any number of {labels}" if _sets(run) else labels
        return f"A classifier of {what} ({labels}), {family} family, {size}, trained {start}."
    kind = run.settings.objective.kind
    return f"A language model, {family} family, {size}, pre-trained by the objective {kind}."


def _story(run: LoadedRun, *, limits: Sequence[str]) -> list[str]:
    """What does not depend on the format: scores, recipe, data, limits."""
    return [
        *("", "## Scores", "", *_scores(run), *_calibration(run)),
        *("", "## Recipe", "", *_table(("setting", "value"), _recipe(run))),
        *("", "## Data", "", *_data(run)),
        *("", "## Limits", "", *(f"- {limit}" for limit in [*_limits(run), *limits] if limit)),
    ]


_OF_A_STUDENT = (
    "A student: it was trained to give unlabelled text the probabilities of another classifier, "
    "its teacher. Agreement was measured on texts that it did not learn from."
)
_SEEN_BY_TEACHER = (
    "The teacher was made from these examples, so both accuracies are too good: measure on others "
    "(`regraft evaluate`)."
)
_SEEN_BY_MODEL = (
    "The model was made from these examples, so the accuracy is too good: measure on others "
    "(`regraft evaluate`)."
)
_SEEN_OFTEN = (
    "One training, one seed. Valid was looked at after every epoch: the score of a test file that "
    "was never looked at is still to be measured (`regraft evaluate`)."
)


def _scores(run: LoadedRun) -> list[str]:
    result = run.info.result
    if "agreement" in result:
        return _student_scores(result)
    if "valid_accuracy" in result:
        kept = result.get("best_epoch")
        accuracy = result["valid_accuracy"][-1 if kept is None else kept]
        num_valid = result["num_valid"]
        if _sets(run):
            micro_f1 = (
                "micro-F1 on valid, one threshold",
                in_percent(accuracy),
                f"{num_valid:,} examples",
            )
            return [*_table(("score", "value", "over"), [micro_f1]), "", _SEEN_OFTEN]
        is_right_N = np.arange(num_valid) < round(accuracy * num_valid)
        interval = accuracy_interval(is_right_N[None])
        row = (
            "accuracy on valid",
            in_percent(accuracy),
            f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %",
            f"{num_valid:,} examples",
        )
        return [*_table(("score", "value", "95 % interval", "over"), [row]), "", _SEEN_OFTEN]
    if "valid_loss" in result:
        rows = [
            ("loss on held-out text, nats a token", f"{result['valid_loss']:.4f}"),
            ("unigram entropy, the line to beat", f"{result['unigram_entropy']:.4f}"),
        ]
        if result.get("bits_per_byte") is not None:
            rows.append(("bits per byte", f"{result['bits_per_byte']:.4f}"))
        return _table(("score", "value"), rows)
    return ["This run keeps none."]


def _student_scores(result: Mapping[str, Any]) -> list[str]:
    """How often a student answers as its teacher does, and is right."""
    rows = [("same label as its teacher", result["agreement"][-1], result["num_held_out"], "texts")]
    if result["accuracy"] is not None:
        num_examples = result["num_examples"]
        rows += [
            ("accuracy", result["accuracy"], num_examples, "examples"),
            ("accuracy of its teacher", result["teacher_accuracy"], num_examples, "examples"),
        ]
    cells = []
    for name, share, count, what in rows:
        interval = accuracy_interval((np.arange(count) < round(share * count))[None])
        reach = f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %"
        cells.append((name, in_percent(share), reach, f"{count:,} {what}"))
    table = _table(("score", "value", "95 % interval", "over"), cells)
    seen = [] if result.get("seen") is None else ["", _SEEN_BY_TEACHER]
    return [_OF_A_STUDENT, "", *table, *seen]


def _calibration(run: LoadedRun) -> list[str]:
    """Whether the probabilities are calibrated."""
    if run.info.kind != "classifier":
        return []
    warm = run.info.temperature
    if warm is None:
        return ["", "Probabilities are as training left them, not calibrated."]
    if "agreement" in run.info.result:
        return ["", "Probabilities are learned from those of the teacher, which are calibrated."]
    how = f"a temperature of {warm:.2f}, fitted on valid, is part of the weights"
    return ["", f"Probabilities are calibrated: {how}."]


def _recipe(run: LoadedRun) -> list[tuple[str, str]]:
    left_out: tuple[str, ...] = _ONLY_CLASSIFIER
    if run.info.kind == "classifier":
        # The objective is the base's; what was trained from scratch never had one.
        left_out = _ONLY_LANGUAGE_MODEL if run.info.base else (*_ONLY_LANGUAGE_MODEL, "objective.")
    if run.settings.objective.kind == "causal":
        left_out = (*left_out, "objective.mask")
    rows = [("preset", run.settings.preset), ("vocabulary", f"{run.tokenizer.vocab_size:,} tokens")]
    for key in _RECIPE:
        section, _, name = key.partition(".")
        value = getattr(getattr(run.settings, section), name)
        if not key.startswith(left_out) and value is not None and value is not False:
            rows.append((key, f"{value:.4g}" if isinstance(value, float) else f"{value}"))
    return rows


def _data(run: LoadedRun) -> list[str]:
    fingerprints = [(part, f"`{value}`") for part, value in run.info.fingerprints.items()]
    sizes = _data_sizes(run)
    if not fingerprints:
        return [sizes]
    return [
        f"{sizes} Fingerprints are of the texts in order, and the same on every machine:",
        *("", *_table(("part", "fingerprint"), fingerprints)),
    ]


def _data_sizes(run: LoadedRun) -> str:
    result = run.info.result
    if "num_train" in result:
        base = "scratch" if run.info.base is None else Path(run.info.base["run_dir"]).name
        return (
            f"{result['num_train']:,} examples to train on, {result['num_valid']:,} held out; "
            f"{in_percent(result['cut_share'])} of the training texts were cut. Start: {base}."
        )
    if "num_held_out" in result:
        return (
            f"{result['num_texts']:,} texts to learn from, {result['num_held_out']:,} held out; "
            f"{in_percent(result['cut_share'])} of the texts were cut."
        )
    if "num_tokens" in result:
        return (
            f"{result['num_documents']:,} documents; {result['num_tokens']:,} tokens read in "
            f"{result['num_steps']:,} steps."
        )
    return "The run keeps no counts of its data."


def _limits(run: LoadedRun) -> list[str]:
    longest = run.settings.data.max_length
    limits = [f"It reads the first {longest} tokens of a text."]
    if reads_pairs(run):
        limits = [f"It reads {longest} tokens of a pair; of a longer one the longer text is cut."]
    if _sets(run):
        thresholds = _thresholds(run)
        limits.append(
            f"It knows its labels only. Each is given from a probability of: {thresholds}."
        )
    elif run.info.kind == "classifier":
        limits.append("It knows its labels only, and gives one of them to any text.")
    elif run.info.result.get("beats_unigram") is False:
        limits.append("It is no better than word frequencies: trained too little.")
    limits.append("It knows the kind of text it was trained on; on other text, measure first.")
    return limits


def _thresholds(run: LoadedRun) -> str:
    pairs = zip(run.info.labels, run.info.thresholds, strict=True)
    return ", ".join(f"`{label}` {threshold:.2f}" for label, threshold in pairs)


def _left_padding(part: Translation) -> str:
    if not all(output.survives_left_padding for output in part.outputs.values()):
        return (
            "Pad on the right: the class reads the first column, which has to be the first token."
        )
    if part.needs_places:
        return f"`{part.architecture}` with padding on the left needs `position_ids`."
    return ""


def _parity_lines(parities: Sequence[Parity], *, other: str) -> list[str]:
    first = parities[0]
    vector = ", ".join(f"{value:.5f}" for value in first.vector)
    return [
        *("", "## Parity", ""),
        f"Scores of {other} against regraft's on {first.num_texts} texts of several lengths; more "
        f"than {TOLERANCE:g} would have stopped the export.",
        *("", *_table(("model", "padding", "largest difference"), parity_rows(parities)), ""),
        f'To recognise it: for "{first.text}" the first scores are {vector}.',
    ]


def _versions(run: LoadedRun, *, others: Sequence[str]) -> list[str]:
    trained = run.info.environment
    here = {name: version(name) for name in ("regraft", "torch", *others)}
    versions = ", ".join(f"{name} {number}" for name, number in here.items())
    made = f"Trained with regraft {trained['regraft']}, torch {trained['torch']}. " * bool(trained)
    return ["", "## Versions", "", f"{made}Exported with {versions}.", ""]


def _python(code: str) -> list[str]:
    return ["```python", *code.rstrip("\n").split("\n"), "```"]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]

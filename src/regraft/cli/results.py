"""How results look on a terminal: profiles, scores, ledgers, comparisons, the demo's story.

Comes in: result objects of the library, or their plain values. Goes out: tables, lines on stdout.
"""

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.cli import terminal

if TYPE_CHECKING:
    from regraft.bench import BenchResult
    from regraft.demo import DemoResult
    from regraft.evaluate import Evaluation, SetEvaluation
    from regraft.evidence import ArmSummary, Comparison
    from regraft.finetune import FinetuneResult
    from regraft.fit import FitResult
    from regraft.fitted import FinalScore
    from regraft.ledger import Ledger
    from regraft.metrics import Interval
    from regraft.mistakes import WrongAnswer
    from regraft.pretrain import PretrainResult
    from regraft.text import Profile

_ROWS_SHOWN = 12
_LABELS_SHOWN = 10
_TEXT_SHOWN = 90
_LINE = 100


def show_profile(profile: "Profile") -> None:
    """Files as a table, then rows of empty and repeated texts, labels, leaks, what is odd."""
    lengths = list(profile.files[0].words)
    numbers = ["rows", "empty", "duplicates", *lengths, "cut"]
    terminal.show_table(
        [*numbers, "file"],
        [
            (
                f"{file.num_rows:,}",
                len(file.empty_rows),
                len(file.duplicates),
                *file.words.values(),
                f"{file.cut.share:.1%}",
                file.source,
            )
            for file in profile.files
        ],
        right=numbers,
    )
    cut = profile.files[0].cut
    terminal.show_line(
        f"{lengths[0]} to {lengths[-1]}: words of a text; "
        f"cut: share of texts longer than {cut.max_length} {cut.unit}"
    )
    for file in profile.files:
        if file.empty_rows:
            rows = _first([str(row) for row in file.empty_rows])
            terminal.show_line(f"empty texts of {file.source}, row: {rows}")
        if file.duplicates:
            rows = _first([f"{twin.row} ({twin.first_row})" for twin in file.duplicates])
            terminal.show_line(f"duplicates of {file.source}, row (first row): {rows}")
        if file.label_counts:
            counts = (f"{label} {count:,}" for label, count in file.label_counts.items())
            terminal.show_line(f"labels of {file.source}: {', '.join(counts)}")
    _show_leaks(profile)
    if len(profile.files) > 1 and not profile.leaks:
        terminal.show_line("leaks: none")
    if not profile.near_checked:
        terminal.show_line("near duplicates were not looked for (--no-near)")
    for warning in profile.warnings:
        terminal.show_line(f"note: {warning}")


def _show_leaks(profile: "Profile") -> None:
    for pair in profile.leak_counts():
        source, other = pair["source"], pair["other_source"]
        terminal.show_line(
            f"leaks: {_counted(pair['exact'], 'row')} of {source} also in {other}"
            + (f", {pair['near']} more nearly the same" if pair["near"] else "")
        )
        for kind in ("exact", "near"):
            rows = [
                f"{leak.row} ({leak.other_row})"
                for leak in profile.leaks
                if (leak.kind, leak.source, leak.other_source) == (kind, source, other)
            ]
            if rows:
                terminal.show_line(f"  {kind}, row (row there): {_first(rows)}")


def _first(rows: Sequence[str]) -> str:
    """The first of many rows; `--json` has all."""
    more = f" and {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return ", ".join(rows[:_ROWS_SHOWN]) + more


def show_pretrained(result: "PretrainResult") -> None:
    """What was read, how fast, and the loss beside the line to beat."""
    terminal.show_table(
        ["pre-trained", ""],
        [
            ("documents", f"{result.num_documents:,}"),
            ("tokens seen", f"{result.num_tokens:,} in {_counted(result.num_steps, 'step')}"),
            ("time", terminal.duration(result.seconds)),
            ("tokens per second", f"{result.tokens_per_second:,.0f}"),
            ("processes x threads", f"{result.num_processes} x {result.num_threads}"),
            ("padding", f"{result.padding_share:.1%}"),
            ("objective", result.objective),
            ("valid loss", f"{result.valid_loss:.3f}"),
            *_to_beat(result),
            *_told_readings(result),
            ("run folder", result.run_dir),
        ],
    )
    if result.beats_unigram is False:
        terminal.show_line("The model is no better than word frequencies: train longer.")


def _to_beat(result: "PretrainResult") -> list[tuple[str, str]]:
    if result.unigram_entropy is None:
        return []
    return [("to beat (unigram entropy)", f"{result.unigram_entropy:.3f}")]


def _told_readings(result: "PretrainResult") -> list[tuple[str, str]]:
    """What an objective tells beside its loss."""
    names = {
        "valid_causal_loss": ("valid loss, causal", "{:.3f}"),
        "valid_pair_accuracy": ("pairs judged rightly (half by chance)", "{:.1%}"),
        "valid_detection_loss": ("detection loss", "{:.3f}"),
        "valid_halves_found": ("second halves found in their group", "{:.1%}"),
        "valid_found": ("replaced tokens found", "{:.1%}"),
        "valid_false_alarms": ("original tokens called replaced", "{:.1%}"),
        "valid_bits_per_byte": ("bits per byte", "{:.3f}"),
    }
    return [
        (text, shown.format(result.readings[key]))
        for key, (text, shown) in names.items()
        if key in result.readings
    ]


def show_bench(result: "BenchResult") -> None:
    """The speed of every shape beside the machine's limit, and one pass over the corpus."""
    head = ["shape", "width", "layers", "parameters", "threads", "tokens/s", "of the limit"]
    rows = [
        [
            speed.name,
            str(speed.width),
            str(speed.num_layers),
            f"{speed.num_parameters:,}",
            str(speed.num_threads),
            f"{speed.tokens_per_second:,.0f}",
            f"{speed.share_of_limit:.0%}",
        ]
        for speed in result.speeds
    ]
    if result.corpus_tokens is not None:
        head.append("one pass")
        for row, speed in zip(rows, result.speeds, strict=True):
            row.append(terminal.duration(speed.corpus_seconds or 0.0))
    terminal.show_table(head, rows, right=head[1:])
    limit = result.matrix_flops_per_second / 1e9
    terminal.show_line(
        f"The limit is a plain matrix product: {limit:,.0f} GFLOP/s on {result.device}. "
        f"Vocabulary {result.vocab_size:,}."
    )
    if result.corpus_bytes is not None:
        megabytes = result.corpus_bytes / 1e6
        terminal.show_line(
            f"The corpus: {megabytes:,.1f} MB, about {result.corpus_tokens:,} tokens."
        )


def show_finetuned(result: "FinetuneResult", *, linear: float | None) -> None:
    """Accuracy before the first and after every epoch, and what came from the base.

    `linear` is the line to beat on valid, where it was measured.
    """
    beside = [] if linear is None else [("the linear arm (TF-IDF)", f"{linear:.1%}")]
    accuracies = [f"{accuracy:.1%}" for accuracy in result.valid_accuracy]
    best = result.best_epoch
    kept = [] if best is None else [("weights kept", f"of epoch {best}, the best on valid")]
    warm = result.temperature
    calibrated = "no" if warm is None else f"by a temperature of {warm:.2f}, fitted on valid"
    terminal.show_table(
        ["fine-tuned", ""],
        [
            ("base", result.base),
            ("from the base", result.transplant or "nothing"),
            ("labels", ", ".join(result.labels)),
            ("examples", f"{result.num_train:,} to learn from, {result.num_valid:,} to watch"),
            ("texts cut", f"{result.cut_share:.1%}"),
            (f"valid {result.followed} before", accuracies[0] if accuracies else "-"),
            (f"valid {result.followed} by epoch", " ".join(accuracies[1:]) or "-"),
            *kept,
            ("calibrated", calibrated),
            *beside,
            ("time", terminal.duration(result.seconds)),
            ("run folder", result.run_dir),
        ],
    )


def show_evaluation(evaluation: "Evaluation") -> None:
    """Scores with their interval, then which label was taken for which."""
    accuracy = evaluation.accuracy
    terminal.show_table(
        ["evaluated", ""],
        [
            ("examples", f"{evaluation.num_examples:,}"),
            ("accuracy", f"{accuracy.mean:.1%} (95 %: {accuracy.low:.1%} to {accuracy.high:.1%})"),
            ("macro F1", f"{evaluation.macro_f1:.3f}"),
            ("calibration error", f"{evaluation.calibration_error:.3f}"),
            ("texts cut", f"{evaluation.cut_share:.1%}"),
        ],
    )
    if len(evaluation.labels) <= _LABELS_SHOWN:
        terminal.show_table(
            ["label \\ predicted", *evaluation.labels],
            [
                (label, *counts)
                for label, counts in zip(evaluation.labels, evaluation.confusion, strict=True)
            ],
            right=evaluation.labels,
        )


def show_set_evaluation(evaluation: "SetEvaluation") -> None:
    """Scores with their intervals, then every label by itself."""
    intervals = (
        ("micro-F1", evaluation.micro_f1),
        ("macro-F1", evaluation.macro_f1),
        ("all labels right", evaluation.exact_match),
    )
    terminal.show_table(
        ["evaluated", ""],
        [
            ("examples", f"{evaluation.num_examples:,}"),
            *(
                (name, f"{score.mean:.1%} (95 %: {score.low:.1%} to {score.high:.1%})")
                for name, score in intervals
            ),
            ("calibration error", f"{evaluation.calibration_error:.3f}"),
            ("texts cut", f"{evaluation.cut_share:.1%}"),
        ],
    )
    heads = ["label", "examples", "predicted", "precision", "recall", "F1", "threshold"]
    terminal.show_table(
        heads,
        [
            (
                score.label,
                f"{score.count:,}",
                f"{score.predicted:,}",
                *(f"{part:.1%}" for part in (score.precision, score.recall, score.f1)),
                f"{score.threshold:.2f}",
            )
            for score in evaluation.labels
        ],
        right=heads[1:],
    )


def show_fitted(result: "FitResult", *, tested: "FinalScore | None") -> None:
    """The blend and its members beside each other, what was read, and whom the blend beats."""
    judged = "valid" if result.num_valid else "cross-validation"
    heads = ["", judged, *(["test"] if tested else []), "weight", "time"]
    rows = []
    for name, score in result.scores.items():
        shown = [_percent(score.accuracy)]
        if tested:
            shown.append(_percent(tested.scores[name].accuracy))
        weight = "" if score.weight is None else f"{score.weight:.2f}"
        seconds = result.seconds if score.weight is None else score.seconds
        rows.append((_MEMBER_NAMES[name], *shown, weight, terminal.duration(seconds)))
    terminal.show_table(heads, rows, right=heads[1:])
    alike = "" if result.num_alike is None else f" ({result.num_alike:,} like the labelled ones)"
    terminal.show_line(
        f"{result.num_train:,} labels, {result.num_documents:,} documents of {result.num_tokens:,} "
        f"tokens{alike}, {_counted(result.num_bases, 'base')}; "
        f"{terminal.duration(result.seconds)} of {result.minutes:g} min."
    )
    if tested is not None:
        terminal.show_line(tested.verdict)
        for note in tested.notes:
            terminal.show_line(note)
    terminal.show_line(f"Use it: regraft predict {result.run_dir} FILE")


_MEMBER_NAMES = {
    "blend": "blend, what predict uses",
    "linear": "linear: TF-IDF of the labels' texts",
    "latent": "latent: TF-IDF and SVD of all text",
    "features": "features: vectors of the bases",
}


def _percent(interval: "Interval") -> str:
    return f"{interval.mean:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def show_ledger(counted: "Ledger", *, num_built: int, wrong: Sequence["WrongAnswer"]) -> None:
    """Every term with its formula and number, then what training costs, then wrong answers."""
    from regraft.ledger import SYMBOLS

    letters = (
        f"{letter} = {value:,} ({SYMBOLS[letter]})" for letter, value in counted.symbols.items()
    )
    terminal.show_line(textwrap.fill(", ".join(letters), _LINE))
    rows = [(term.name, term.formula, f"{term.count:,}") for term in counted.terms]
    rows.append(("total, as in the built model", "", f"{num_built:,}"))
    terminal.show_table(["term", "formula", "parameters"], rows, right=["parameters"])
    terminal.show_line(f"layers alone: {counted.layers:,}")
    terminal.show_line(f"base (without a head): {counted.base:,}")
    terminal.show_line(f"language model: {counted.language_model:,}")
    if counted.classifier is not None:
        terminal.show_line(f"classifier: {counted.classifier:,}")
    products = [
        (term.name, term.formula, f"{term.count / 1e6:,.3f}") for term in counted.flops_per_token
    ]
    terminal.show_table(["arithmetic a token", "formula", "MFLOP"], products, right=["MFLOP"])
    terminal.show_line(
        f"arithmetic: {counted.flops_forward / 1e6:,.1f} MFLOP a token forward, "
        f"{counted.flops_forward_backward / 1e6:,.1f} MFLOP with the way back"
    )
    terminal.show_line(f"memory for training: about {counted.memory_bytes / 1e6:,.0f} MB")
    for answer in wrong:
        terminal.show_line()
        classifier = "" if answer.classifier is None else f", classifier {answer.classifier:,}"
        terminal.show_line(f"Wrong: {answer.name}. Published: {answer.published}.")
        terminal.show_line(f"  {answer.mistake}")
        terminal.show_line(
            f"  {answer.formula}: base {answer.base:,}, language model "
            f"{answer.language_model:,}{classifier}"
        )
        for change in answer.changes:
            terminal.show_line(
                f"  {change.term}: {change.wrong} instead of {change.right} "
                f"({change.difference:+,})"
            )


def show_comparison(comparison: "Comparison", *, report_path: Path) -> None:
    """The arms as a table, the paired tests in words, the verdict, where the report is."""
    from regraft.report import words

    columns = ["test accuracy", "95 %", "without leaks", "valid", "seeds", "time a seed"]
    terminal.show_table(
        ["arm", *columns],
        [
            (
                arm.name,
                f"{arm.test_accuracy.mean:.1%}",
                f"{arm.test_accuracy.low:.1%} to {arm.test_accuracy.high:.1%}",
                _without_leaks(arm),
                f"{arm.valid_accuracy.mean:.1%}",
                arm.num_seeds,
                terminal.duration(arm.seconds),
            )
            for arm in comparison.arms
        ],
        right=columns,
    )
    for test in words.told_tests(comparison):
        terminal.show_line(words.paired_test_in_words(test))
    for warning in comparison.warnings:
        terminal.show_line(f"note: {warning}")
    terminal.show_line()
    terminal.show_line(f"Verdict: {comparison.verdict}")
    if comparison.worth is not None:
        terminal.show_line(comparison.worth.sentence)
    for worth in comparison.more_worths:
        terminal.show_line(f"{worth.arm}: {worth.sentence}")
    terminal.show_line(f"Report: {report_path}")


def _without_leaks(arm: "ArmSummary") -> str:
    """`75.4%, 71.0% to 79.8%`, of the examples that decide; once is enough if these are all."""
    clean = arm.test_accuracy_without_leaks
    if clean is None:
        return "-"
    told = f"{clean.mean:.1%}"
    return told if clean == arm.test_accuracy else f"{told}, {clean.low:.1%} to {clean.high:.1%}"


def show_demo(result: "DemoResult") -> None:
    """The demo's end: table, verdict, a generated sentence, predictions, where all of it lies."""
    terminal.show_line(f"Data: {result.title}.")
    show_comparison(result.comparison, report_path=result.report_path)
    terminal.show_line()
    terminal.show_line("What `regraft fit` makes of the same text and labels:")
    show_fitted(result.fitted, tested=result.tested)
    terminal.show_line()
    terminal.show_line(f"The base goes on writing: {result.generated}")
    terminal.show_line("The classifier reads texts it has never seen:")
    for prediction in result.predictions:
        text = textwrap.shorten(prediction.text, _TEXT_SHOWN, placeholder=" ...")
        terminal.show_line(
            f"  {prediction.predicted} at {prediction.probability:.0%} "
            f"(it is {prediction.label}): {text}"
        )
    terminal.show_line(f'Your turn: echo "Your text" | regraft predict {result.classifier_dir} -')
    if result.is_synthetic:
        terminal.show_line("This was synthetic text; the numbers say nothing of real text.")


def demo_to_dict(result: "DemoResult") -> dict[str, Any]:
    """The demo's result, ready for JSON."""
    from regraft.report import comparison_to_dict

    return {
        "is_synthetic": result.is_synthetic,
        "title": result.title,
        "comparison": comparison_to_dict(result.comparison),
        "fitted": result.fitted.to_dict(),
        "tested": result.tested.to_dict(),
        "generated": result.generated,
        "predictions": [dataclasses.asdict(prediction) for prediction in result.predictions],
        "report_path": str(result.report_path),
        "classifier_dir": str(result.classifier_dir),
    }


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""Results as tables and lines on stdout."""

import dataclasses
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.apps.cli import terminal
from regraft.runtime import counted, duration, in_percent

if TYPE_CHECKING:
    from regraft.apps.course.mistakes import WrongAnswer
    from regraft.apps.demo import DemoResult
    from regraft.classifiers import (
        Answered,
        DistillResult,
        Evaluation,
        FinetuneResult,
        FitResult,
        LabelScore,
        SetEvaluation,
        Update,
    )
    from regraft.comparison import Comparison
    from regraft.data import FileProfile, Profile
    from regraft.models import Ledger
    from regraft.stats import Interval
    from regraft.training import BenchResult, PretrainResult

_ROWS_SHOWN = 12
_LABELS_SHOWN = 10
_TEXT_SHOWN = 90
_ERRORS_SHOWN = 5
_LINE = 100


def show_profile(profile: "Profile") -> None:
    """A table of files, then empty and duplicate texts, labels, leaks and warnings."""
    lengths = list(profile.files[0].words)
    numbers = ["rows", "empty", "duplicates", *lengths, "cut"]
    terminal.show_table(
        [*numbers, "file"],
        [
            (
                f"{file.num_rows:,}",
                f"{len(file.empty_rows):,}",
                f"{len(file.duplicates):,}",
                *(f"{length:,}" for length in file.words.values()),
                in_percent(file.cut.share),
                file.source,
            )
            for file in profile.files
        ],
        right=numbers,
    )
    cut = profile.files[0].cut
    terminal.show_line(
        f"{lengths[0]} to {lengths[-1]}: words per text; "
        f"cut: share of texts longer than {cut.max_length:,} {cut.unit}, the rest of which a "
        "transformer of `finetune` does not read (--max-length); `fit` reads longer texts"
    )
    for file in profile.files:
        if file.empty_rows:
            places = zip(file.empty_sources, file.empty_rows, strict=True)
            rows = _first([_place(file, source, row) for source, row in places])
            terminal.show_line(f"empty texts in {file.source}, {_places(file)}: {rows}")
        if file.duplicates:
            rows = _first(
                [
                    f"{_place(file, twin.source, twin.row)} "
                    f"({_place(file, twin.first_source, twin.first_row)})"
                    for twin in file.duplicates
                ]
            )
            what = "file (first file)" if _is_folder(file) else "row (first row)"
            terminal.show_line(f"duplicates in {file.source}, {what}: {rows}")
        if file.label_counts:
            counts = (f"{label} {count:,}" for label, count in file.label_counts.items())
            terminal.show_line(f"labels of {file.source}: {', '.join(counts)}")
    _show_leaks(profile)
    if len(profile.files) > 1 and not profile.leaks:
        terminal.show_line("leaks: none")
    if not profile.near_checked:
        terminal.show_line("near duplicates were not searched (--no-near)")
    for warning in profile.warnings:
        terminal.show_line(f"note: {warning}")


def _is_folder(file: "FileProfile") -> bool:
    return Path(file.source).is_dir()


def _places(file: "FileProfile") -> str:
    return "files" if _is_folder(file) else "rows"


def _place(file: "FileProfile", source: str, row: int) -> str:
    """The row of a text; in a folder, where each text is a file, its name."""
    return os.path.relpath(source, file.source) if _is_folder(file) else f"{row}"


def _show_leaks(profile: "Profile") -> None:
    for pair in profile.leak_counts():
        source, other = pair["source"], pair["other_source"]
        terminal.show_line(
            f"leaks: {counted(pair['exact'], 'row')} of {source} also in {other}"
            + (f", {pair['near']} more nearly the same" if pair["near"] else "")
        )
        for kind in ("exact", "near"):
            rows = [
                f"{leak.row} ({leak.other_row})"
                for leak in profile.leaks
                if (leak.kind, leak.source, leak.other_source) == (kind, source, other)
            ]
            if rows:
                terminal.show_line(f"  {kind}, row (row in the other file): {_first(rows)}")


def _first(rows: Sequence[str]) -> str:
    """The first rows; `--json` has all."""
    more = f" and {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return ", ".join(rows[:_ROWS_SHOWN]) + more


def show_pretrained(result: "PretrainResult") -> None:
    """What was read, how fast, and the loss with its baseline."""
    terminal.show_table(
        ["pre-trained", ""],
        [
            ("documents", f"{result.num_documents:,}"),
            ("tokens seen", f"{result.num_tokens:,} in {counted(result.num_steps, 'step')}"),
            ("time", duration(result.seconds)),
            ("tokens per second", f"{result.tokens_per_second:,.0f}"),
            ("processes x threads", f"{result.num_processes} x {result.num_threads}"),
            ("padding", in_percent(result.padding_share)),
            ("objective", result.objective),
            *_stage_rows(result),
            ("valid loss", f"{result.valid_loss:.3f}"),
            *_to_beat(result),
            *_readings(result),
            ("run folder", result.run_dir),
        ],
    )
    if result.beats_unigram is False:
        terminal.show_line("The model is no better than token frequencies: train longer.")


def _stage_rows(result: "PretrainResult") -> list[tuple[str, str]]:
    """One line a stage, where there are several."""
    if len(result.stages) < 2:
        return []
    return [
        (
            f"stage {stage['name']}",
            f"{stage['num_tokens']:,} tokens in {counted(stage['num_steps'], 'step')}, "
            f"{duration(stage['seconds'])}",
        )
        for stage in result.stages
    ]


def _to_beat(result: "PretrainResult") -> list[tuple[str, str]]:
    if result.unigram_entropy is None:
        return []
    return [("baseline (unigram entropy)", f"{result.unigram_entropy:.3f}")]


def _readings(result: "PretrainResult") -> list[tuple[str, str]]:
    """What an objective measures besides its loss."""
    names = {
        "valid_causal_loss": ("valid loss, causal", "{:.3f}".format),
        "valid_pair_accuracy": ("pair accuracy (chance: 50 %)", in_percent),
        "valid_detection_loss": ("detection loss", "{:.3f}".format),
        "valid_halves_found": ("second halves matched in their group", in_percent),
        "valid_documents_halves_found": ("second halves matched in their group", in_percent),
        "valid_found": ("replaced tokens found", in_percent),
        "valid_false_alarms": ("false alarms on original tokens", in_percent),
        "valid_bits_per_byte": ("bits per byte", "{:.3f}".format),
    }
    return [
        (text, shown(result.readings[key]))
        for key, (text, shown) in names.items()
        if key in result.readings
    ]


def show_bench(result: "BenchResult") -> None:
    """The speed of every shape, the limit of the machine, and the time of one pass."""
    head = ["shape", "width", "layers", "parameters", "threads", "tokens/s", "of the limit"]
    rows = [
        [
            speed.name,
            str(speed.width),
            str(speed.num_layers),
            f"{speed.num_parameters:,}",
            str(speed.num_threads),
            f"{speed.tokens_per_second:,.0f}",
            in_percent(speed.share_of_limit, digits=0),
        ]
        for speed in result.speeds
    ]
    if result.corpus_tokens is not None:
        head.append("one pass")
        for row, speed in zip(rows, result.speeds, strict=True):
            row.append(duration(speed.corpus_seconds or 0.0))
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
    """Validation scores by epoch, and what came from the base.

    `linear` is the baseline on the validation set, where it was measured.
    """
    baseline = [] if linear is None else [("TF-IDF baseline", in_percent(linear))]
    accuracies = [in_percent(accuracy) for accuracy in result.valid_accuracy]
    best = result.best_epoch
    kept = [] if best is None else [("weights kept", f"of epoch {best}, the best on valid")]
    calibrated = "no"
    if result.temperature is not None:
        calibrated = f"temperature {result.temperature:.2f}, fitted on valid"
    terminal.show_table(
        ["fine-tuned", ""],
        [
            ("base", result.base),
            ("from the base", result.transplant or "nothing"),
            ("labels", ", ".join(result.labels)),
            ("examples", f"{result.num_train:,} for training, {result.num_valid:,} for validation"),
            ("texts cut", in_percent(result.cut_share)),
            (f"valid {result.followed} before", accuracies[0] if accuracies else "-"),
            (f"valid {result.followed} by epoch", " ".join(accuracies[1:]) or "-"),
            *kept,
            ("calibrated", calibrated),
            *baseline,
            ("time", duration(result.seconds)),
            ("run folder", result.run_dir),
        ],
    )
    _show_doubts(result)


def _show_doubts(result: "FitResult | FinetuneResult") -> None:
    """Below what there is no answer, and how many labels may be wrong."""
    from regraft.classifiers import FinetuneResult

    if result.abstain_below is not None:
        terminal.show_line(f"No answer below a confidence of {result.abstain_below:.3f}.")
    if result.num_label_issues:
        files = [] if isinstance(result, FinetuneResult) else result.judged_files
        how = (
            "its column id names files: move those you accept to the folder of their class"
            if any(Path(file).is_dir() for file in files)
            else "`regraft data clean` applies what you accept"
        )
        terminal.show_line(
            f"{counted(result.num_label_issues, 'label')} may be wrong: "
            f"{result.run_dir}/label_issues.csv ({how})."
        )


def show_distilled(result: "DistillResult") -> None:
    """How well the student answers as its teacher does, and how often both are right."""
    agreement = [in_percent(share) for share in result.agreement]
    scores = []
    if result.accuracy is not None and result.teacher_accuracy is not None:
        over = f"of {result.num_examples:,} examples"
        scores = [
            ("accuracy of the student", f"{in_percent(result.accuracy)} {over}"),
            ("accuracy of the teacher", f"{in_percent(result.teacher_accuracy)} {over}"),
        ]
    terminal.show_table(
        ["distilled", ""],
        [
            ("teacher", result.teacher),
            ("base", result.base),
            ("labels", ", ".join(result.labels)),
            ("texts", f"{result.num_texts:,} to learn from, {result.num_held_out:,} held out"),
            ("texts cut", in_percent(result.cut_share)),
            ("same label as the teacher, by epoch", " ".join(agreement[1:])),
            ("divergence from the teacher", f"{result.divergence:.4f} nats"),
            *scores,
            ("time of training", duration(result.seconds)),
            ("run folder", result.run_dir),
        ],
    )


def show_evaluation(evaluation: "Evaluation | SetEvaluation") -> None:
    """The scores of a classifier, of one label per text or of several."""
    from regraft.classifiers import SetEvaluation

    if isinstance(evaluation, SetEvaluation):
        _show_set_evaluation(evaluation)
    else:
        _show_single_evaluation(evaluation)


def _show_single_evaluation(evaluation: "Evaluation") -> None:
    """Scores with their interval, and the confusion matrix."""
    from regraft.stats import landmarks

    accuracy, answered = evaluation.accuracy, evaluation.answered
    terminal.show_table(
        ["evaluated", ""],
        [
            ("examples", f"{evaluation.num_examples:,}"),
            ("accuracy", f"{in_percent(accuracy.mean)} (95 % interval {_reach(accuracy)})"),
            ("macro F1", f"{evaluation.macro_f1:.3f}"),
            ("calibration error", f"{evaluation.calibration_error:.3f}"),
            ("texts cut", in_percent(evaluation.cut_share)),
            *([] if answered is None else [_answered(answered, evaluation.num_examples)]),
        ],
    )
    terminal.show_table(
        ["coverage", "accuracy", "confidence from"],
        [
            (in_percent(p.coverage, digits=0), in_percent(p.accuracy), f"{p.threshold:.3f}")
            for p in landmarks(evaluation.coverage)
        ],
        right=["coverage", "accuracy", "confidence from"],
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
    _show_label_scores(evaluation.by_label)
    if evaluation.errors:
        heads = ["most confident errors", "label", "predicted", "probability", "text"]
        terminal.show_table(
            heads,
            [
                (
                    f"row {error.row}" + (f" ({error.id})" if error.id else ""),
                    error.label,
                    error.predicted,
                    in_percent(error.probability),
                    textwrap.shorten(error.text, _TEXT_SHOWN, placeholder=" ..."),
                )
                for error in evaluation.errors[:_ERRORS_SHOWN]
            ],
            right=["probability"],
        )


def _answered(answered: "Answered", num_examples: int) -> tuple[str, str]:
    """A row about the texts that reach the confidence from which there is an answer."""
    share = answered.num_texts / num_examples
    score = "" if answered.accuracy is None else f", accuracy {_percent(answered.accuracy)}"
    return f"answered from {answered.abstain_below:.3f} on", f"{in_percent(share)}{score}"


def _show_set_evaluation(evaluation: "SetEvaluation") -> None:
    """Scores with their intervals, then the scores of every label."""
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
                (name, f"{in_percent(score.mean)} (95 % interval {_reach(score)})")
                for name, score in intervals
            ),
            ("calibration error", f"{evaluation.calibration_error:.3f}"),
            ("texts cut", in_percent(evaluation.cut_share)),
        ],
    )
    _show_label_scores(evaluation.labels)


def _show_label_scores(scores: "Sequence[LabelScore]") -> None:
    """Precision, recall and F1 of every label, and its threshold if it has one."""
    has_threshold = any(score.threshold is not None for score in scores)
    heads = ["label", "examples", "predicted", "precision", "recall", "F1"]
    heads += ["threshold"] if has_threshold else []
    rows = [
        (
            score.label,
            f"{score.count:,}",
            f"{score.predicted:,}",
            *(in_percent(part) for part in (score.precision, score.recall, score.f1)),
            *([f"{score.threshold:.2f}"] if score.threshold is not None else []),
        )
        for score in scores
    ]
    terminal.show_table(heads, rows, right=heads[1:])


def show_fitted(
    result: "FitResult", *, tested: "Comparison | None", seconds: float | None = None
) -> None:
    """The blend and its members, the training data, and the verdict on the test file.

    `seconds` is the time of the whole command.
    """
    from regraft.config import FIT_MEMBERS
    from regraft.report import encoder_sentence, forecast_sentence

    judged = "valid" if result.num_valid else "cross-validation"
    on_test = {arm.name: arm.deciding for arm in tested.arms} if tested else {}
    has_macro = result.measure == "micro-F1" or bool(result.priors)
    macro = ["macro-F1"] if has_macro else []
    kind = f"{result.measure}, " if has_macro else ""
    heads = ["", f"{kind}{judged}", *(["test"] if tested else []), *macro, "weight", "time"]
    rows = []
    for name, score in result.scores.items():
        scores = [_percent(score.accuracy)]
        if tested:
            scores.append(_percent(on_test[name]))
        if has_macro:
            scores.append(in_percent(score.macro_f1))
        weight = "" if score.weight is None else f"{score.weight:.2f}"
        own_seconds = result.seconds if score.weight is None else score.seconds
        rows.append((name, *scores, weight, duration(own_seconds)))
    terminal.show_table(heads, rows, right=heads[1:])
    for name in result.scores:
        terminal.show_line(f"{name}: {FIT_MEMBERS[name]}")
    if result.update is not None:
        _show_update(result.update)
    whole = result if seconds is None else dataclasses.replace(result, seconds=seconds)
    alike = "" if result.num_alike is None else f" ({result.num_alike:,} like the labelled ones)"
    terminal.show_line(
        f"{result.num_train:,} labels, {result.num_documents:,} documents of {result.num_tokens:,} "
        f"tokens{alike}, {counted(result.num_bases, 'base')}; {whole.time_taken}."
    )
    if tested is not None:
        for warning in tested.warnings:
            terminal.show_line(f"note: {warning}")
        terminal.show_line(f"Verdict: {tested.verdict}")
    for sentence in filter(None, (forecast_sentence(result), encoder_sentence(result))):
        terminal.show_line(sentence)
    _show_doubts(result)
    terminal.show_line(f"Use it: regraft predict {result.run_dir} FILE")


def _show_update(update: "Update") -> None:
    """The scores before and after the new labels, on the same texts."""
    from regraft.report import UPDATE_COLUMNS, update_rows, update_sentence

    terminal.show_table(UPDATE_COLUMNS, update_rows(update), right=UPDATE_COLUMNS[1:])
    terminal.show_line(update_sentence(update))


def _percent(interval: "Interval") -> str:
    return f"{in_percent(interval.mean)} ({_reach(interval)})"


def _reach(interval: "Interval") -> str:
    """`79.2 to 82.7`, of a score in percent."""
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"


def show_parameters(count: "Ledger", *, num_built: int, wrong: Sequence["WrongAnswer"]) -> None:
    """Every term with its formula and value, the cost of training, and common wrong answers."""
    from regraft.models import SYMBOLS

    letters = (
        f"{letter} = {value:,} ({SYMBOLS[letter]})" for letter, value in count.symbols.items()
    )
    terminal.show_line(textwrap.fill(", ".join(letters), _LINE))
    rows = [(term.name, term.formula, f"{term.count:,}") for term in count.terms]
    rows.append(("total, equal to the built model", "", f"{num_built:,}"))
    terminal.show_table(["term", "formula", "parameters"], rows, right=["parameters"])
    terminal.show_line(f"layers alone: {count.layers:,}")
    terminal.show_line(f"base (without a head): {count.base:,}")
    terminal.show_line(f"language model: {count.language_model:,}")
    if count.classifier is not None:
        terminal.show_line(f"classifier: {count.classifier:,}")
    products = [
        (term.name, term.formula, f"{term.count / 1e6:,.3f}") for term in count.flops_per_token
    ]
    terminal.show_table(["arithmetic per token", "formula", "MFLOP"], products, right=["MFLOP"])
    terminal.show_line(
        f"arithmetic: {count.flops_forward / 1e6:,.1f} MFLOP per token forward, "
        f"{count.flops_forward_backward / 1e6:,.1f} MFLOP with the backward pass"
    )
    terminal.show_line(f"memory for training: about {count.memory_bytes / 1e6:,.0f} MB")
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
    from regraft.report import sentences as words

    # Those that decide come first; all are shown where they are others.
    has_leaks = any(arm.deciding != arm.test_accuracy for arm in comparison.arms)
    leaks = ["on all texts"] if has_leaks else []
    columns = ["test accuracy", "95 %", *leaks, "valid", "seeds", "time a seed"]
    terminal.show_table(
        ["arm", *columns],
        [
            (
                arm.name,
                in_percent(arm.deciding.mean),
                _reach(arm.deciding),
                *([_percent(arm.test_accuracy)] if has_leaks else []),
                in_percent(arm.valid_accuracy.mean),
                arm.num_seeds,
                duration(arm.seconds),
            )
            for arm in comparison.ranked_arms
        ],
        right=columns,
    )
    for test in words.shown_tests(comparison):
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


def show_demo(result: "DemoResult") -> None:
    """The comparison, generated text and some predictions."""
    terminal.show_line(f"Data: {result.title}.")
    for note in result.notes:
        terminal.show_line(f"note: {note}")
    show_comparison(result.comparison, report_path=result.report_path)
    terminal.show_line(f"Accuracy after every epoch: {result.figure_path}")
    terminal.show_line()
    terminal.show_line(f"Text generated by the base: {result.generated}")
    if (fitted := result.fitted) is not None:
        terminal.show_line("Predictions for new texts:")
        for prediction in fitted.predictions:
            text = textwrap.shorten(prediction.text, _TEXT_SHOWN, placeholder=" ...")
            terminal.show_line(
                f"  {prediction.predicted} at {in_percent(prediction.probability, digits=0)} "
                f"(it is {prediction.label}): {text}"
            )
        terminal.show_line("Your turn, with this classifier and on your own data:")
        for command in (
            f'echo "Your text" | regraft predict {fitted.classifier_dir} -',
            "regraft fit --text TEXTS --train LABELS.csv --out runs/own",
            "regraft studio runs --text TEXTS     # label in the browser, and train",
        ):
            terminal.show_line(f"  {command}")
    if result.is_synthetic:
        terminal.show_line("This was synthetic text; the numbers do not carry over to real text.")


def demo_to_dict(result: "DemoResult") -> dict[str, Any]:
    """The demo's result, ready for JSON; without the recipe of fit, without its keys."""
    from regraft.report import comparison_to_dict

    shown = {
        "is_synthetic": result.is_synthetic,
        "title": result.title,
        "notes": list(result.notes),
        "comparison": comparison_to_dict(result.comparison),
        "generated": result.generated,
        "report_path": str(result.report_path),
        "figure_path": str(result.figure_path),
    }
    if (fitted := result.fitted) is not None:
        shown |= {
            "fitted": fitted.result.to_dict(),
            "predictions": [dataclasses.asdict(p) for p in fitted.predictions],
            "classifier_dir": str(fitted.classifier_dir),
        }
    return shown

"""The verdict: what may be concluded from a comparison, by fixed rules, in one sentence.

Comes in: summaries of arms and paired tests. Goes out: a kind and a sentence. The rules stand in
docs/concepts/evidence.md and are tested on simulated comparisons of which the truth is known.
"""

from collections.abc import Sequence

from regraft.evidence import ArmSummary, PairedTest, VerdictKind


def judge(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> tuple[VerdictKind, str]:
    """The verdict in one sentence, by fixed rules: a gap counts if its paired test says so."""
    score = {arm.name: arm.test_accuracy.mean for arm in arms}
    against = {test.second: test for test in tests if test.first == "pretrained"}
    if not {"scratch", "linear"} & against.keys():
        return "no-base", (
            "The base was compared neither with scratch nor with a linear model, "
            "so there is no verdict."
        )
    ours = f"{score['pretrained']:.1%}"
    kind: VerdictKind = "pays"
    parts = []
    if "scratch" in against:
        gain = against["scratch"]
        theirs = f"{score['scratch']:.1%} from scratch, {_gap(gain)}"
        if gain.is_significant and gain.difference.mean > 0:
            parts.append(f"Pre-training helped: {ours} against {theirs}")
        elif gain.is_significant:
            kind = "hurts"
            parts.append(f"Pre-training hurt: {ours} against {theirs}")
        else:
            kind = "no-gain"
            parts.append(f"No gain from pre-training was found: {ours} against {theirs}")
    else:
        parts.append(f"The pre-trained model reaches {ours}")
    if "linear" in against:
        gap = against["linear"]
        theirs = f"TF-IDF + logistic regression ({score['linear']:.1%}, {_gap(gap)})"
        if not gap.is_significant:
            kind = "ties-with-linear" if kind == "pays" else kind
            parts.append(f"it cannot be told apart from {theirs}")
        elif gap.difference.mean > 0:
            parts.append(f"it beats {theirs}")
        else:
            kind = "loses-to-linear" if kind == "pays" else kind
            parts.append(f"it loses to {theirs}")
    return kind, "; ".join(parts) + "."


def _gap(test: PairedTest) -> str:
    gap = test.difference
    return f"{100 * gap.mean:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"

"""Explanations of networks and of blends: complete, by words, refused where they make no sense."""

import json

import numpy as np
import pytest
import torch
from captum.attr import LayerIntegratedGradients
from random_runs import write_run
from tampering import accept_files
from tiny_blends import blend_dir
from torch import nn

from regraft.classifiers.attribution import (
    MAX_CHARACTERS,
    MOST_LEFT_OUT,
    Explainer,
    log_odds,
    rank_correlation,
)
from regraft.classifiers.base import load_classifier
from regraft.classifiers.gradients import SMALL_GAP, SMALL_GAP_SHARE
from regraft.data.words import spread_over_words
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.runtime.files import write_json

TEXT = "The plot is dull, but her style isn't: wonderful to the last page!"
FAMILIES = [
    ("lab", "causal", "last"),
    ("bert", "masked", "first"),
    ("modern", "masked", "mean"),
    ("bag", "contrast", "mean"),
]


@pytest.fixture(scope="module")
def explainer(shared_classifier):
    return Explainer.load(shared_classifier)


@pytest.fixture(scope="module")
def blend(tmp_path_factory):
    return Explainer.load(blend_dir(tmp_path_factory, num_labels=2))


@pytest.mark.parametrize(("preset", "objective", "pooling"), FAMILIES)
def test_integrated_gradients_are_complete_for_every_family(preset, objective, pooling, tmp_path):
    run = write_run(tmp_path / "run", preset=preset, objective=objective, pooling=pooling)
    text = "the plot is dull, her style isn't"
    for label in ("bad", "so so"):
        found = Explainer.load(run).explain(text, label=label)
        assert found.method == "integrated-gradients"
        assert found.label == label
        assert [word.text for word in found.words] == [
            *("the", "plot", "is", "dull", ",", "her", "style", "isn't")
        ]
        difference = abs(found.output - found.baseline)
        assert abs(found.gap) <= max(SMALL_GAP, SMALL_GAP_SHARE * difference) * 1.01
        assert any(word.score != 0 for word in found.words)
        # Tokens around the text stay as they are; but a bag knows them as neighbours.
        assert preset == "bag" or found.elsewhere == 0


@pytest.mark.parametrize(("preset", "objective", "pooling"), FAMILIES[:3])
def test_integrated_gradients_are_captum_s(preset, objective, pooling, tmp_path):
    run = write_run(tmp_path / "run", preset=preset, objective=objective, pooling=pooling)
    classifier = load_classifier(run)
    text = "the plot is dull, her style isn't"
    found = Explainer(classifier).explain(text, "so so")

    # captum starts at tokens, we at the average of all: let it be one more token.
    model, tokenizer = classifier.network.model, classifier.network.tokenizer
    table_VD = model.backbone.embedding.weight.detach()
    average_id = len(table_VD)
    model.backbone.embedding = nn.Embedding.from_pretrained(
        torch.cat([table_VD, table_VD.mean(dim=0, keepdim=True)])
    )
    ids = tokenizer.encode(text)
    row_BT = torch.tensor([tokenizer.framed(ids, max_length=32)])
    is_text_T = slice(len(tokenizer.prefix_ids), len(tokenizer.prefix_ids) + len(ids))
    start_BT = row_BT.clone()
    start_BT[:, is_text_T] = average_id

    def odds(ids_BT):
        scores_BC = model(ids_BT).double()
        return scores_BC[:, 2] - scores_BC[:, :2].logsumexp(dim=1)

    scores_BTD = LayerIntegratedGradients(odds, model.backbone.embedding).attribute(
        row_BT, start_BT, n_steps=found.num_steps, method="gausslegendre"
    )
    scores_T = scores_BTD.detach()[0, is_text_T].sum(dim=1).double().numpy()
    starts_T, stops_T = np.array(tokenizer.spans(text)).T
    spans = [(word.start, word.stop) for word in found.words]
    words_W1, _ = spread_over_words(
        scores_T[:, None], starts_N=starts_T, stops_N=stops_T, spans=spans
    )
    ours_W = [word.score for word in found.words]
    assert ours_W == pytest.approx(words_W1[:, 0], abs=1e-5)
    assert max(map(abs, ours_W)) > 0.1


def test_gradients_of_a_linear_model_are_its_weights(tmp_path):
    """A bag whose head reads the mean: a token adds its way from the average times the weight."""
    run = write_run(tmp_path / "run", preset="bag", objective="contrast", pooling="mean")
    classifier = load_classifier(run)
    head, backbone = classifier.network.model.head, classifier.network.model.backbone
    head.reads_direction = False
    with torch.no_grad():
        backbone.neighbours.weight.zero_()
        # Of two classes only the first matters, so that log-odds are linear.
        head.linear.weight[1:].zero_()
        head.linear.weight[2] = head.linear.weight[1]
        head.linear.bias[2] = -1e4
    text = "dumb fogs"
    found = Explainer(classifier).explain(text, "bad")
    ids = classifier.network.tokenizer.encode(text)
    row = classifier.network.tokenizer.framed(ids, max_length=32)
    assert len(set(row)) == len(row), "no token twice: all weigh the same"
    ways = backbone.embedding.weight[ids] - backbone.embedding.weight.mean(dim=0)
    expected = (ways @ head.linear.weight[0] / len(row)).detach().numpy()
    is_first = np.array([stop <= 4 for _, stop in classifier.network.tokenizer.spans(text)])
    assert found.words[0].score == pytest.approx(expected[is_first].sum(), abs=1e-4)
    assert found.words[1].score == pytest.approx(expected[~is_first].sum(), abs=1e-4)


def test_explaining_leaves_the_model_as_it_was(explainer):
    before = explainer.classifier.predict_proba([TEXT])
    weights = [p.clone() for p in explainer.classifier.network.model.parameters()]
    explainer.explain(TEXT)
    np.testing.assert_array_equal(explainer.classifier.predict_proba([TEXT]), before)
    after = list(explainer.classifier.network.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights, after, strict=True))
    assert all(p.grad is None for p in after)
    assert not explainer.classifier.network.model.backbone.embedding._forward_hooks


def test_explanation_says_what_predict_says(explainer):
    found = explainer.explain(TEXT)
    probabilities = explainer.classifier.predict_proba([TEXT])[0]
    assert list(found.probabilities.values()) == probabilities.tolist()
    assert found.label == found.predicted == explainer.labels[probabilities.argmax()]
    assert all(found.text[word.start : word.stop] == word.text for word in found.words)


def test_labels_of_two_classes_are_moved_the_opposite_way(explainer):
    positive = explainer.explain(TEXT, "positive")
    negative = explainer.explain(TEXT, "negative")
    for a, b in zip(positive.words, negative.words, strict=True):
        assert a.score == pytest.approx(-b.score, abs=1e-5)


def test_explainer_works_inside_no_grad(explainer):
    with torch.no_grad():
        assert explainer.explain(TEXT).num_steps >= 16


def test_words_behind_the_model_s_reach_are_told(explainer):
    found = explainer.explain("the plot is dull " * 40)
    assert found.num_unread > 100
    assert all(word.score == 0 for word in found.words[-found.num_unread :])
    assert any(word.score != 0 for word in found.words[: -found.num_unread])
    left_out = explainer.explain("the plot is dull " * 40, method="leave-one-out")
    assert left_out.num_unread == found.num_unread


def test_text_in_several_windows_is_explained_by_leaving_words_out(tmp_path):
    run = write_run(tmp_path / "run", preset="modern", objective="masked", pooling="mean")
    settings = json.loads((run / "config.json").read_text())
    settings["data"]["windows"] = 3
    write_json(run / "config.json", settings)
    accept_files(run)
    explainer = Explainer.load(run)
    assert explainer.explain("a dull plot").method == "integrated-gradients"
    long = " ".join(["her style is dull"] * 8)
    found = explainer.explain(long)
    assert (found.method, found.num_unread) == ("leave-one-out", 0)
    assert found.words[-1].score != 0
    with pytest.raises(ConfigError, match=r"data\.windows"):
        explainer.explain(long, method="integrated-gradients")


def test_leave_one_out_is_the_difference_that_a_word_makes(explainer, blend):
    for each in (explainer, blend):
        found = each.explain("a dull film, really", method="leave-one-out")
        target = each.labels.index(found.label)
        texts = ["a dull film, really", "a film, really", ""]
        whole, without, nothing = log_odds(each.classifier.predict_proba(texts), target=target)
        assert found.words[1].score == pytest.approx(whole - without, abs=1e-5)
        assert found.baseline == pytest.approx(nothing, abs=1e-5)


def test_long_text_has_neighbours_left_out_together(blend):
    text = "It broke after a day and I love it. " * 80
    found = blend.explain(text, method="leave-one-out")
    assert found.num_together == -(-len(found.words) // MOST_LEFT_OUT)
    assert len({word.score for word in found.words}) > 10


def test_blend_is_explained_exactly(blend):
    found = blend.explain(TEXT)
    assert found.method == "contributions"
    assert found.baseline == 0
    assert found.gap == pytest.approx(0, abs=1e-4)


def test_both_methods_agree_on_what_matters(blend):
    found = blend.checked(
        blend.explain("A superb camera, I love it, but the lid broke after a day.")
    )
    assert found.agreement is not None
    assert found.agreement > 0.3


def test_check_of_two_words_says_nothing(blend):
    assert blend.checked(blend.explain("superb camera")).agreement is None


def test_rank_correlation_is_spearman_s():
    a, b = np.array([1.0, 2.0, 3.0, 9.0]), np.array([0.1, 0.2, 0.3, 0.4])
    assert rank_correlation(a, b) == pytest.approx(1)
    assert rank_correlation(a, -b) == pytest.approx(-1)
    assert rank_correlation(a, np.ones(4)) is None


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f44d\U0001f3fd\U0001f44d good",
        "\u0627\u0644\u0641\u064a\u0644\u0645 \u0631\u0627\u0626\u0639 \u202e evil",
        "a\x00b\x1b[2J\x07 good",
        "half \ud83d of a pair, and a whole \ud83d\ude00",
        "x" * 5_000,
        "<script>alert(1)</script>",
    ],
)
def test_any_text_is_explained(explainer, blend, text):
    for each in (explainer, blend):
        found = each.explain(text)
        assert found.words
        assert all(np.isfinite(word.score) for word in found.words)
        assert "".join(piece for piece, _, _ in found.pieces()) == found.text


@pytest.mark.slow
def test_text_of_a_megabyte_is_explained(explainer, blend):
    text = ("the plot is dull and the lid broke " * 30_000)[:MAX_CHARACTERS]
    for each in (explainer, blend):
        assert each.explain(text).words
    assert explainer.explain(text, method="leave-one-out").words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The text is empty. An explanation scores words. Give some text."),
        (" \n\x00", "The text has no word in it. An explanation scores words. Give some text."),
        ("a" * (MAX_CHARACTERS + 1), "The text has 1,000,001 characters. At most 1,000,000 are"),
    ],
)
def test_text_without_words_or_end_is_refused(explainer, text, message):
    with pytest.raises(DataError) as caught:
        explainer.explain(text)
    assert message in str(caught.value)


def test_unknown_label_is_refused_with_the_nearest(explainer):
    with pytest.raises(ConfigError) as caught:
        explainer.explain(TEXT, "pozitive")
    assert str(caught.value) == (
        "The label 'pozitive' is unknown. This classifier knows negative, positive. "
        "Did you mean positive?"
    )


def test_method_that_does_not_fit_is_refused(explainer, blend):
    with pytest.raises(ConfigError, match=r"contributions does not fit.* integrated-gradients or"):
        explainer.explain(TEXT, method="contributions")
    with pytest.raises(ConfigError, match="Use contributions or leave-one-out"):
        blend.explain(TEXT, method="integrated-gradients")


def test_base_without_a_classifier_is_refused(shared_base, tmp_path):
    with pytest.raises(RunFolderError) as caught:
        Explainer.load(shared_base).explain(TEXT)
    assert "holds a language-model, not a classifier" in str(caught.value)
    assert f"regraft finetune --base {shared_base}" in str(caught.value)
    with pytest.raises(RunFolderError):
        Explainer.load(tmp_path / "nowhere").explain(TEXT)

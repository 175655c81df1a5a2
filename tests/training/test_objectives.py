"""What is learned: what each objective may not see, what it sums, and that it can be learned."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY, make_examples
from torch import Tensor
from torch.nn import functional as F

from regraft.config.resolution import replace, resolve
from regraft.config.schema import Settings
from regraft.data.objective_rows import pretraining_rows
from regraft.data.rows import IGNORED, Batch, Rows, StreamRows
from regraft.data.tokens.store import TokenStore, offsets_of
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import numbered_tokenizer, train_tokenizer
from regraft.errors import ConfigError, TrainingError
from regraft.models.heads import Model, ReplacedHead, build_classifier, build_language_model, pool
from regraft.runtime.hardware import seeded
from regraft.stats.metrics import unigram_entropy
from regraft.training import objectives
from regraft.training.checkpoint import Checkpoints
from regraft.training.loop import TrainState, build_state, steps
from regraft.training.masking import Moment, build_corruption
from regraft.training.objectives import (
    TOKEN_LOSS,
    LossSum,
    Objective,
    build_objective,
    build_validation,
    causal,
    classify,
    hybrid,
    masked,
    readings,
)

FAMILIES = ("lab", "bert", "modern")
# Pairs need token types, which one family has.
COMBINATIONS = [
    *((family, kind) for family in FAMILIES for kind in ("causal", "masked", "replaced", "hybrid")),
    ("bert", "bert"),
    ("bert", "sop"),
]
KINDS = ("masked", "bert", "sop", "replaced", "hybrid")


@dataclass(frozen=True)
class Task:
    """All that it takes to train: made by `task`."""

    settings: Settings
    tokenizer: Tokenizer
    store: TokenStore
    rows: Rows
    objective: Objective

    def model(self) -> Model:
        with seeded(0, stream="weights"):
            return build_language_model(
                self.settings.model,
                vocab_size=self.tokenizer.vocab_size,
                objective=self.settings.objective,
            )

    def state(self) -> TrainState:
        num_rows = len(self.rows.lengths)
        return build_state(self.model(), settings=self.settings.train, num_rows=num_rows)

    def steps(self, state: TrainState) -> Iterator[Any]:
        return steps(state, rows=self.rows, objective=self.objective, settings=self.settings.train)

    def batch(self, *numbers: int) -> tuple[Batch, Moment]:
        rows = np.array(numbers)
        return self.rows.batch(rows), Moment(seed=0, step=0, rows=rows, done=0.0)


@lru_cache
def text() -> tuple[Tokenizer, TokenStore]:
    documents = [text for text, _ in make_examples(60, seed=1)]
    settings = resolve("pretrain", overrides={**TINY, "train.steps": 1})
    tokenizer = train_tokenizer(documents, settings=settings.tokenizer)
    rows = [
        [tokenizer.start_id, *ids, tokenizer.end_id] for ids in tokenizer.encode_batch(documents)
    ]
    offsets = offsets_of(np.array([len(row) for row in rows]))
    ids = np.concatenate(rows).astype(np.uint16)
    return tokenizer, TokenStore.from_arrays(ids, offsets, num_bytes=len("".join(documents)))


@lru_cache(maxsize=99)
def task(
    family: str, kind: str, given: tuple[Tokenizer, TokenStore] | None = None, **overrides: Any
) -> Task:
    """The tiny settings of one family and objective, on the text given or any."""
    changes = {name.replace("__", "."): value for name, value in overrides.items()}
    plain = {"model.dropout": 0.0, "model.attention_dropout": 0.0, "train.steps": 6}
    # Put in afterwards: a user may not give an objective what it does not read, a test may.
    later = {
        key: changes.pop(key) for key in list(changes) if key.startswith(("objective.", "data."))
    }
    settings = resolve(
        "pretrain",
        preset=family,
        overrides={**TINY, **plain, "objective.kind": kind, **changes},
    )
    for key, value in later.items():
        section, _, name = key.partition(".")
        settings = replace(settings, section, **{name: value})
    tokenizer, store = given or text()
    return Task(
        settings=settings,
        tokenizer=tokenizer,
        store=store,
        rows=pretraining_rows(store, tokenizer=tokenizer, settings=settings),
        objective=build_objective(settings, tokenizer=tokenizer),
    )


class Spy:
    """Takes the place of the fused loss and notes what reaches it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hidden: list[Tensor] = []
        self.targets: list[Tensor] = []
        self._loss: Callable[..., Tensor] = objectives.linear_cross_entropy
        monkeypatch.setattr(objectives, "linear_cross_entropy", self)

    def __call__(self, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        self.hidden.append(hidden.detach())
        self.targets.append(targets)
        return self._loss(hidden, weight, bias, targets)


def step_of(kind: str, *, share: float = 0.25) -> int:
    """A step at which a hybrid does this."""
    moments = (Moment(seed=0, step=step, rows=np.arange(1), done=0.0) for step in range(99))
    chances = [moment.chance(stream="which objective") < share for moment in moments]
    return chances.index(kind == "causal")


# What may not be seen.


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["causal", "hybrid"])
def test_causal_loss_does_not_depend_on_the_future(monkeypatch, family, kind):
    # Under hybrid the model looks both ways, unless it is told not to.
    given = task(family, kind)
    model, (batch, moment) = given.model().eval(), given.batch(0, 3)
    spy = Spy(monkeypatch)
    for place in (1, 9, 23):
        changed = batch.ids_BT.clone()
        changed[:, place:] = (changed[:, place:] + 7) % given.tokenizer.vocab_size
        targets = batch.targets.clone()
        targets[:, place:] = IGNORED
        before = causal(model, dataclasses.replace(batch, targets=targets), moment)
        after = causal(model, Batch(changed, batch.real_BT, targets), moment)
        assert torch.equal(before.total, after.total)
        assert torch.equal(spy.hidden[-2], spy.hidden[-1])
        assert before.count == len(spy.hidden[-1]) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_token_changes_no_score(monkeypatch, family):
    given = task(family, "masked", objective__mask_rate=0.3)
    model, (batch, moment) = given.model().eval(), given.batch(0, 3, 5)
    corruption = build_corruption(given.settings.objective, tokenizer=given.tokenizer)
    hidden, targets = corruption.hide(batch.ids_BT, real_BT=batch.real_BT, moment=moment)
    is_masked = hidden == given.tokenizer.mask_id
    assert is_masked.sum() > 10
    # Another token under every <mask>.
    changed = batch.ids_BT.where(~is_masked, 6 + (batch.ids_BT + 11) % 290)
    spy = Spy(monkeypatch)
    for ids in (batch.ids_BT, changed):
        given.objective(model, dataclasses.replace(batch, ids_BT=ids), moment)
    assert torch.equal(*spy.hidden)
    assert not torch.equal(*spy.targets)
    assert len(spy.targets[0]) == int((targets != IGNORED).sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_token_is_read_from_both_sides(monkeypatch, family):
    given = task(family, "masked")
    model, (batch, moment) = given.model().eval(), given.batch(0)
    spy = Spy(monkeypatch)
    corruption = build_corruption(given.settings.objective, tokenizer=given.tokenizer)
    _, targets = corruption.hide(batch.ids_BT, real_BT=batch.real_BT, moment=moment)
    (places,) = (targets[0] != IGNORED).nonzero(as_tuple=True)
    seen = [place for place in range(24) if place not in places]
    for place in (seen[1], seen[-1]):
        changed = batch.ids_BT.clone()
        changed[0, place] = 6 + (changed[0, place] + 11) % 290
        for ids in (batch.ids_BT, changed):
            given.objective(model, dataclasses.replace(batch, ids_BT=ids), moment)
        assert (spy.hidden[-1] != spy.hidden[-2]).any(dim=1).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["causal", "masked", "replaced"])
def test_documents_of_a_row_do_not_see_each_other(monkeypatch, family, kind):
    given = task(family, kind, data__packing="isolated", objective__mask_rate=0.5)
    model = given.model().eval()
    batches = (given.batch(number) for number in range(99))
    batch, moment = next(one for one in batches if (one[0].segments_BT[0] == 1).sum() > 8)
    is_second = batch.segments_BT == 1
    ids = batch.ids_BT
    is_ordinary = ids >= 6
    changed = ids.where(~(is_second & is_ordinary), 6 + (ids + 11) % 290)
    spy = Spy(monkeypatch)
    vectors: list[Tensor] = []
    model.backbone.register_forward_hook(lambda module, given, out: vectors.append(out))
    for tokens in (ids, changed):
        given.objective(model, dataclasses.replace(batch, ids_BT=tokens), moment)
    assert torch.equal(vectors[0][~is_second], vectors[1][~is_second])
    assert not torch.equal(vectors[0][is_second], vectors[1][is_second])
    # Nor does the generator of replaced tokens, or the head.
    is_same = (spy.hidden[0] == spy.hidden[1]).all(dim=1)
    assert is_same.any()
    assert not is_same.all()


@pytest.mark.parametrize("family", FAMILIES)
def test_replaced_shows_the_model_nothing_but_tokens(monkeypatch, family):
    given = task(family, "replaced", objective__mask_rate=0.3)
    model, (batch, moment) = given.model().eval(), given.batch(0, 3, 5)
    assert isinstance(model.head, ReplacedHead)
    seen: list[tuple[Any, dict[str, Any]]] = []
    scores: list[Tensor] = []
    model.backbone.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args, kwargs)), with_kwargs=True
    )
    model.head.register_forward_hook(lambda module, args, out: scores.append(out))
    spy = Spy(monkeypatch)
    found = given.objective(model, batch, moment)
    (((ids,), options),) = seen
    assert options.keys() == {"real_BT", "segments_BT"}
    assert options["real_BT"] is batch.real_BT
    assert options["segments_BT"] is batch.segments_BT
    # Given these tokens, the scores are the same whatever was there before.
    hidden = model.backbone(ids, real_BT=batch.real_BT, segments_BT=batch.segments_BT)
    again = model.head(hidden, real_BT=batch.real_BT, embedding_VD=model.backbone.embedding.weight)
    assert torch.equal(again, scores[0])
    # What was hidden was exchanged, and <mask> itself is not seen but by the generator.
    corruption = build_corruption(given.settings.objective, tokenizer=given.tokenizer)
    _, targets = corruption.hide(
        batch.ids_BT, real_BT=batch.real_BT, moment=moment, masked_share=1.0, random_share=0.0
    )
    is_hidden = targets != IGNORED
    assert torch.equal(ids[~is_hidden], batch.ids_BT[~is_hidden])
    assert torch.equal(spy.targets[0], batch.ids_BT[is_hidden])
    is_replaced = ids != batch.ids_BT
    assert 0 < int(is_replaced.sum()) == found.readings["found"].count <= int(is_hidden.sum())


# What is summed.


def test_causal_counts_real_targets_only():
    model = task("lab", "causal").model().eval()
    ids, targets = torch.randint(17, (2, 5)), torch.randint(17, (2, 5))
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    targets[~real] = IGNORED
    moment = Moment(seed=0, step=0, rows=np.arange(2), done=0.0)
    loss = causal(model, Batch(ids, real, targets), moment)
    scores = model(ids, real_BT=real)
    expected = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
    assert loss.count == 7
    torch.testing.assert_close(loss.total, expected)
    assert loss.readings[TOKEN_LOSS].count == 7
    assert loss.readings[TOKEN_LOSS].total == loss.total


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_is_the_loss_of_the_hidden_tokens(family):
    given = task(family, "masked")
    model, (batch, moment) = given.model().eval(), given.batch(0, 3, 5)
    corruption = build_corruption(given.settings.objective, tokenizer=given.tokenizer)
    hidden, targets = corruption.hide(batch.ids_BT, real_BT=batch.real_BT, moment=moment)
    scores = model(hidden, real_BT=batch.real_BT)
    expected = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
    found = given.objective(model, batch, moment)
    torch.testing.assert_close(found.total, expected)
    assert found.count == int((targets != IGNORED).sum())


@pytest.mark.parametrize(("family", "kind"), COMBINATIONS)
def test_head_runs_at_targets_only(monkeypatch, family, kind):
    given = task(family, kind)
    spy = Spy(monkeypatch)
    model, (batch, moment) = given.model().eval(), given.batch(0, 3, 5)
    moment = dataclasses.replace(moment, step=step_of("masked"))
    transformed: list[int] = []
    transform = getattr(model.head, "transform", torch.nn.Identity())
    transform.register_forward_hook(lambda module, args, out: transformed.append(len(args[0])))
    found = given.objective(model, batch, moment)
    (hidden,) = spy.hidden
    assert found.count == len(hidden)
    assert transformed in ([], [found.count])
    if kind != "causal":
        assert found.count < 0.3 * batch.ids_BT.numel()


@pytest.mark.parametrize("kind", ["bert", "sop"])
def test_pair_weighs_as_much_as_the_tokens_hidden_in_its_row(kind):
    given = task("bert", kind)
    model, (batch, moment) = given.model().eval(), given.batch(0, 3, 5, 8)
    found = given.objective(model, batch, moment)
    corruption = build_corruption(given.settings.objective, tokenizer=given.tokenizer)
    ids, targets = corruption.hide(batch.ids_BT, real_BT=batch.real_BT, moment=moment)
    vectors = model.backbone(ids, real_BT=batch.real_BT, token_types_BT=batch.token_types_BT)
    scores = model.head.pair_scores(vectors, real_BT=batch.real_BT)
    pairs = F.cross_entropy(scores, batch.targets, reduction="none")
    num_hidden = (targets != IGNORED).sum(dim=1)
    assert num_hidden.unique().numel() > 1
    tokens = found.readings[TOKEN_LOSS]
    torch.testing.assert_close(found.total - tokens.total, (num_hidden * pairs).sum())
    assert found.count == tokens.count == int(num_hidden.sum())
    accuracy = found.readings["pair_accuracy"]
    assert accuracy.count == 4
    assert int(accuracy.total) == int((scores.argmax(dim=1) == batch.targets).sum())


def test_pair_reads_the_token_types():
    given = task("bert", "bert")
    model, (batch, moment) = given.model().eval(), given.batch(0, 3)
    other = dataclasses.replace(batch, token_types_BT=1 - batch.token_types_BT)
    found = [given.objective(model, one, moment).total for one in (batch, other)]
    assert found[0] != found[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_replaced_sums_both_losses_and_keeps_them_apart(monkeypatch, family):
    given = task(family, "replaced", objective__mask_rate=0.3)
    batch, moment = given.batch(0, 3, 5)
    gradients = {}
    for weight in (0.0, 50.0):
        monkeypatch.setattr(objectives, "DETECTION_WEIGHT", weight)
        model = given.model().eval()
        found = given.objective(model, batch, moment)
        found.total.backward()
        gradients[weight] = {name: p.grad for name, p in model.named_parameters()}
    generator, detection = found.readings[TOKEN_LOSS], found.readings["detection_loss"]
    assert detection.count == int(batch.real_BT.sum())
    # Divided by the count of targets, the discriminator's mean loss weighs 50. Rows differ in
    # their share of targets by rounding only.
    weighed = (found.total - generator.total) / found.count
    assert weighed.item() == pytest.approx(50 * detection.total.item() / detection.count, rel=0.1)
    for name, gradient in gradients[50.0].items():
        alone = gradients[0.0][name]
        is_of_generator = name.startswith("head.generator.")
        # The generator learns from its own loss only; the embeddings from both.
        assert torch.allclose(gradient, alone, atol=1e-5) == is_of_generator, name
    assert gradients[0.0]["backbone.embedding.weight"].abs().sum() > 0


def test_replaced_samples_as_the_generator_says():
    scores = torch.tensor([[0.0, 2.0, -30.0, 1.0], [-200.0, 0.0, 0.0, -200.0]])
    draws = (torch.arange(1000) + 0.5) / 1000
    for row in scores:
        sampled = objectives._sampled(row.expand(1000, 4), draws)
        counts = sampled.bincount(minlength=4)
        assert (counts - 1000 * row.softmax(dim=0)).abs().max() <= 1
    ends = torch.tensor([0.0, 1 - 2**-24])
    assert objectives._sampled(scores[1].expand(2, 4), ends).tolist() == [1, 2]


def test_replaced_samples_in_the_chunks_of_the_loss(monkeypatch):
    given = task("modern", "replaced", objective__mask_rate=0.5)
    model, (batch, moment) = given.model().eval(), given.batch(0, 3, 5)
    whole = given.objective(model, batch, moment)
    monkeypatch.setattr("regraft.training.fused_loss.CHUNK", 4)
    parts = given.objective(model, batch, moment)
    assert whole.count > 8
    torch.testing.assert_close(parts.total, whole.total)


def test_hybrid_takes_its_share_of_causal_steps():
    given = task("modern", "hybrid")
    model, (batch, moment) = given.model().eval(), given.batch(0)
    corruption = build_corruption(given.settings.objective, tokenizer=given.tokenizer)
    objective = hybrid(corruption, causal_share=0.25)
    is_causal = []
    with torch.no_grad():
        for step in range(12):
            moment = Moment(seed=0, step=step, rows=moment.rows, done=0.0)
            one, other = causal(model, batch, moment), masked(corruption)(model, batch, moment)
            found = objective(model, batch, moment)
            is_causal.append(bool(found.total == one.total))
            assert found.total == (one if is_causal[-1] else other).total
            # Every micro-batch and process of a step does the same.
            assert is_causal[-1] == (moment.chance(stream="which objective") < 0.25)
    assert 0 < sum(is_causal) < 12


def test_hybrid_is_validated_by_its_two_sides():
    given = task("modern", "hybrid")
    found = build_validation(given.settings, tokenizer=given.tokenizer)
    assert list(found) == ["valid", "valid_causal"]
    assert found["valid_causal"] is causal
    assert list(build_validation(task("bert", "bert").settings, tokenizer=given.tokenizer)) == [
        "valid"
    ]


def test_classify_sums_over_rows_and_weighs_classes():
    torch.manual_seed(0)
    settings = task("lab", "causal").settings.model
    model = build_classifier(settings, vocab_size=17, num_classes=3, pooling="mean").eval()
    batch = Batch(
        torch.randint(17, (4, 5)), torch.ones(4, 5, dtype=torch.bool), torch.tensor([0, 1, 2, 2])
    )
    moment = Moment(seed=0, step=0, rows=np.arange(4), done=0.0)
    scores = model(batch.ids_BT, real_BT=batch.real_BT)
    losses = F.cross_entropy(scores, batch.targets, reduction="none")
    plain = classify()(model, batch, moment)
    assert plain.count == 4
    torch.testing.assert_close(plain.total, losses.sum())
    weighted = classify(torch.tensor([2.0, 1.0, 0.5]))(model, batch, moment)
    torch.testing.assert_close(weighted.total, (losses * torch.tensor([2.0, 1.0, 0.5, 0.5])).sum())
    assert weighted.count == 4


# What is learned.


def without_gradient(model: Model) -> list[str]:
    """Parameters that the last backward pass did not reach, or reached with nothing."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]


@pytest.mark.parametrize(("family", "kind"), COMBINATIONS)
def test_gradients_reach_every_parameter(family, kind):
    given = task(family, kind, objective__mask_rate=0.3)
    rows = np.arange(4)
    # DDP waits for all of them at every step: each kind of step of a hybrid has to.
    for step in {step_of("causal"), step_of("masked")}:
        model = given.model()
        moment = Moment(seed=0, step=step, rows=rows, done=0.0)
        given.objective(model, given.rows.batch(rows), moment).total.backward()
        assert without_gradient(model) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
def test_gradients_reach_every_parameter_of_a_classifier(family, pooling):
    given = task(family, "masked")
    with seeded(0, stream="weights"):
        model = build_classifier(
            given.settings.model,
            vocab_size=given.tokenizer.vocab_size,
            num_classes=3,
            pooling=pooling,
        )
    batch, moment = given.batch(0, 1, 2)
    batch = dataclasses.replace(batch, targets=torch.tensor([0, 1, 2]))
    classify()(model, batch, moment).total.backward()
    assert without_gradient(model) == []


@pytest.mark.parametrize(("family", "kind"), COMBINATIONS)
def test_one_batch_can_be_overfitted(family, kind):
    given = task(
        family,
        kind,
        data__max_length=12,
        model__width=24,
        model__num_layers=1,
        model__num_heads=2,
        objective__mask_rate=0.3,
        objective__generator_share=1.0,
    )
    model, rows = given.model(), np.array([0, 5, 8])
    batch = given.rows.batch(rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    # What is hidden stays the same; a hybrid does both in turn.
    moments = [
        Moment(seed=0, step=step, rows=rows, done=0.0)
        for step in (step_of("masked"), step_of("causal"))
    ]
    losses, token_losses = [], []
    for step in range(240 if kind == "replaced" else 120):
        found = given.objective(model, batch, moments[step % 2 if kind == "hybrid" else 0])
        optimizer.zero_grad()
        (found.total / found.count).backward()
        optimizer.step()
        losses.append(found.total.item() / found.count)
        token_losses.append(found.readings[TOKEN_LOSS].total.item() / found.count)
        if max(losses[-2:]) < 0.1:
            break
    assert losses[0] > 5
    if kind == "replaced":
        # What a generator draws changes as long as it learns, and one token weighs 50 times.
        assert min(token_losses[-20:]) < 0.3
        assert min(losses[-20:]) < 10
    else:
        assert max(token_losses[-2:]) < 0.3
        assert max(losses[-2:]) < 0.3


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("modern", "masked"),
        ("bert", "bert"),
        ("bert", "sop"),
        ("lab", "replaced"),
        ("modern", "hybrid"),
    ],
)
def test_micro_batches_do_not_change_the_result(family, kind):
    # Documents of different lengths; a small rate, for Adam turns rounding in a gradient near zero
    # into a whole step of its size.
    given = task(family, kind, data__packing="document", train__batch_size=8, train__lr=3e-5)
    whole, parts = given.state(), given.state()
    expected = [record.loss for record in given.steps(whole)]
    settings = replace(given.settings, "train", micro_batch_tokens=24)
    split = dataclasses.replace(given, settings=settings)
    assert [record.loss for record in split.steps(parts)] == pytest.approx(expected, rel=1e-5)
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(parts.model.state_dict()[name], tensor, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_run_equals_one_never_stopped_bit_for_bit(tmp_path: Path, kind):
    given = task("bert", kind, model__dropout=0.2, objective__mask_rate_end=0.3, train__threads=1)
    straight, first, second = given.state(), given.state(), given.state()
    list(given.steps(straight))
    for record in given.steps(first):
        if record.step == 3:
            Checkpoints(tmp_path, keep=1).save(first, extra={})
            break
    Checkpoints(tmp_path, keep=1).load(second)
    list(given.steps(second))
    assert second.step == straight.step == 6
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor), name


def topics() -> tuple[Tokenizer, TokenStore]:
    """Documents of four words each, of eight topics: few steps teach what else a text says."""
    tokenizer = numbered_tokenizer(6 + 8 * 4)
    source = np.random.default_rng(0)
    words = [6 + 4 * (n % 8) + source.integers(4, size=source.integers(12, 22)) for n in range(64)]
    rows = [[tokenizer.start_id, *ids, tokenizer.end_id] for ids in words]
    offsets = offsets_of(np.array([len(row) for row in rows]))
    return tokenizer, TokenStore.from_arrays(
        np.concatenate(rows).astype(np.uint16), offsets, num_bytes=1
    )


@pytest.mark.parametrize(
    ("family", "kind", "num_steps"),
    [
        ("modern", "masked", 60),
        ("modern", "hybrid", 60),
        ("modern", "replaced", 100),
        ("bert", "bert", 100),
        ("bert", "sop", 60),
    ],
)
def test_loss_curve_is_golden_and_beats_the_unigram_entropy(golden, family, kind, num_steps):
    given = task(
        family,
        kind,
        topics(),
        data__packing="document",
        model__width=32,
        model__num_layers=1,
        model__num_heads=2,
        objective__generator_share=1.0,
        train__steps=num_steps,
        train__batch_size=8,
        train__lr=1e-2,
    )
    state = given.state()
    losses = [record.loss for record in given.steps(state)]
    means = np.mean(np.reshape(losses, (-1, 10)), axis=1)
    golden(f"loss_{kind}.txt", "".join(f"{loss:.2f}\n" for loss in means))
    counts = given.store.counts(vocab_size=given.tokenizer.vocab_size)
    counts[sorted(given.tokenizer.special_ids)] = 0
    (objective, *_) = build_validation(given.settings, tokenizer=given.tokenizer).values()
    found = readings(state.model, given.rows, objective=objective, max_tokens=2000)
    assert found[TOKEN_LOSS] < unigram_entropy(counts) - 0.5


# What cannot be learned.


def special_only(given: Task, numbers: set[int]) -> Rows:
    """The same rows, some of which hold special tokens only."""

    class Emptied:
        lengths = given.rows.lengths

        def batch(self, wanted: np.ndarray) -> Batch:
            batch = copy.deepcopy(given.rows.batch(wanted))
            for place, number in enumerate(wanted.tolist()):
                if number in numbers:
                    batch.ids_BT[place] = given.tokenizer.start_id
            return batch

    return Emptied()


@pytest.mark.parametrize("kind", KINDS)
def test_row_without_a_maskable_token_counts_for_nothing(kind):
    given = task("bert", kind)
    model, (batch, moment) = given.model().eval(), given.batch(0, 1, 2)
    moment = dataclasses.replace(moment, step=step_of("masked"))
    emptied = special_only(given, {1}).batch(moment.rows)
    others = [0, 2]
    kept = Batch(
        *(part[others] for part in (batch.ids_BT, batch.real_BT, batch.targets)),
        token_types_BT=None if batch.token_types_BT is None else batch.token_types_BT[others],
    )
    found = given.objective(model, emptied, moment)
    alone = given.objective(model, kept, dataclasses.replace(moment, rows=moment.rows[others]))
    assert found.count == alone.count > 0
    if kind != "replaced":  # there, special tokens are seen to be the original ones
        torch.testing.assert_close(found.total, alone.total)


@pytest.mark.parametrize("kind", ["masked", "bert", "replaced"])
def test_step_without_a_maskable_token_is_refused(kind):
    given = task("bert", kind)
    rows = special_only(given, set(range(len(given.rows.lengths))))
    state = given.state()
    before = copy.deepcopy(state.model)
    with pytest.raises(TrainingError) as caught:
        next(dataclasses.replace(given, rows=rows).steps(state))
    assert str(caught.value) == (
        "The rows of step 1 have nothing to predict. They consist of special tokens only. "
        "Look for empty documents, or take larger batches (train.batch_size)."
    )
    for name, tensor in before.state_dict().items():
        assert torch.equal(state.model.state_dict()[name], tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_without_a_mask_is_refused(kind):
    given = task("bert", kind)
    lacking = copy.copy(given.tokenizer)
    lacking.mask_id = None
    with pytest.raises(
        ConfigError, match=rf"The objective {kind} needs a token <mask>, which this tokenizer lacks"
    ):
        build_objective(given.settings, tokenizer=lacking)
    causal_settings = replace(given.settings, "objective", kind="causal")
    assert build_objective(causal_settings, tokenizer=lacking) is causal


def test_objective_needs_the_head_made_for_it():
    given, other = task("bert", "replaced"), task("bert", "masked")
    batch, moment = given.batch(0)
    with pytest.raises(AssertionError, match="the objective needs a ReplacedHead"):
        given.objective(other.model(), batch, moment)
    with pytest.raises(AssertionError, match="the objective needs a LanguageModelHead"):
        other.objective(given.model(), batch, moment)


def test_objective_on_the_pooled_vector_needs_no_change_of_the_loop():
    """A document's bag of words from one vector a row (as VAMPIRE): only this function is new."""

    def bag_of_words(model: Model, batch: Batch, moment: Moment) -> LossSum:
        pooled_BD = pool(
            model.backbone(batch.ids_BT, real_BT=batch.real_BT),
            real_BT=batch.real_BT,
            pooling="mean",
        )
        weight_VD, bias_V = model.head.vocabulary(model.backbone.embedding.weight)
        scores_BV = F.linear(model.head.transformed(pooled_BD), weight_VD, bias_V)
        total = -scores_BV.log_softmax(dim=1).gather(1, batch.ids_BT).sum()
        return LossSum(total, batch.ids_BT.numel())

    settings = resolve("pretrain", size="tiny", overrides={"train.steps": 30, "train.lr": 0.01})
    store = TokenStore.from_arrays(
        np.random.default_rng(0).integers(6, 50, 400).astype(np.uint32),
        np.array([0, 400]),
        num_bytes=400,
    )
    rows = StreamRows(store, max_length=16)
    model = build_language_model(settings.model, vocab_size=50, objective=settings.objective)
    state = build_state(model, settings=settings.train, num_rows=len(rows.lengths))
    loop = steps(state, rows=rows, objective=bag_of_words, settings=settings.train)
    losses = [record.loss for record in loop]
    assert losses[-1] < losses[0]
    found = readings(model, rows, objective=bag_of_words, max_tokens=100)
    assert found["loss"] < losses[0]

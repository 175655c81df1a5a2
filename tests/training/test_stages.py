"""Stages of pre-training: what each trains, that a stop changes nothing, and what is refused."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY, Recorder
from safetensors.torch import load_file

from regraft.config.presets import PRESETS
from regraft.config.resolution import replace, resolve
from regraft.config.schema import Settings
from regraft.errors import ConfigError, RunFolderError
from regraft.models.backbones import Transformer
from regraft.models.heads import pool
from regraft.training.loaded_run import load_run
from regraft.training.pretraining import pretrain
from regraft.training.run_folder import read_info, read_metrics

WORDS = [a + b + c for a in ("ba", "do", "ki", "lu") for b in ("ra", "se", "ti") for c in "mnst"]
ALL = "words,documents,language"
TOGETHER = "words,documents+language"


@pytest.fixture
def documents_path(tmp_path: Path) -> Path:
    """150 documents, each about three words of its own."""
    draw = random.Random(0)
    lines = [
        " ".join(draw.choices(draw.sample(WORDS, 3) + WORDS[:2], k=draw.randint(20, 40)))
        for _ in range(150)
    ]
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


class StopIn(Recorder):
    """Presses Ctrl-C at a step of one stage."""

    def __init__(self, stage: str, *, at: int) -> None:
        super().__init__()
        self._stage, self._at = stage, at

    def start(self, name: str, *, total: float | None) -> None:
        super().start(name, total=total)
        # The bags of the stage words are numbered: "pre-train words 1 of 4".
        stage = name.removeprefix("pre-train ").partition(" ")[0]
        self._interrupt_at = self._at if stage == self._stage else None


def settings_of(preset: str, stages: str, **more: Any) -> Settings:
    overrides = {
        **TINY,
        "tokenizer.size": 420,
        "train.steps": 6,
        "train.valid_share": 0.1,
        "train.checkpoint_every": None,
        "objective.stages": stages,
        **more,
    }
    if stages != "language":
        overrides["objective.group_size"] = 8
    if preset == "lab" and "language" in stages:
        overrides["objective.sampled_tokens"] = 64
    return resolve("pretrain", preset=preset, overrides=overrides)


def weights_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "model.safetensors")


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if key != "tokens_per_second"}
        for record in read_metrics(run_dir)
    ]


@pytest.mark.parametrize(
    ("preset", "stages"),
    [("lab", TOGETHER), ("modern", TOGETHER), ("bert", ALL), ("lab", ALL), ("modern", "documents")],
)
def test_every_family_is_trained_in_stages(
    documents_path: Path, tmp_path: Path, preset: str, stages: str
) -> None:
    settings = settings_of(preset, stages)
    result = pretrain([documents_path], out=tmp_path / "run", settings=settings)
    assert [stage["name"] for stage in result.stages] == stages.split(",")
    assert result.num_steps == sum(stage["num_steps"] for stage in result.stages)
    assert read_info(tmp_path / "run").result["stages"] == result.stages
    assert (result.unigram_entropy is None) == (stages == "documents")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("config.json", "metrics.jsonl", "model.safetensors", "run.json", "tokenizer.json")
    }
    logged = [record["step"] for record in metrics_of(tmp_path / "run")]
    assert logged == sorted(logged)


def test_default_stages_follow_the_objective() -> None:
    found = {
        kind: resolve(
            "pretrain",
            preset=preset,
            overrides={"objective.kind": kind, "objective.stages": "auto"},
        ).objective
        for preset, kind in [
            ("lab", "causal"),
            ("modern", "masked"),
            ("modern", "hybrid"),
            ("modern", "replaced"),
            ("bert", "bert"),
            ("modern", "contrast"),
        ]
    }
    assert {kind: objective.stages for kind, objective in found.items()} == {
        "causal": TOGETHER,
        "masked": TOGETHER,
        "hybrid": TOGETHER,
        "replaced": ALL,
        "bert": ALL,
        "contrast": "language",
    }
    stages = {name: resolve("pretrain", preset=name).objective.stages for name in PRESETS}
    staged, others = (
        dict.fromkeys(("lab", "modern"), TOGETHER),
        dict.fromkeys(("bert", "bag"), "language"),
    )
    assert stages == {**staged, **others, "student": "words"}


@pytest.mark.parametrize(("preset", "stages"), [("lab", TOGETHER), ("modern", ALL)])
@pytest.mark.parametrize("stop_at", [1, 2])
def test_resumed_stages_equal_straight_ones(
    documents_path: Path, tmp_path: Path, preset: str, stages: str, stop_at: int
) -> None:
    settings = settings_of(preset, stages)
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    expected = pretrain([documents_path], out=straight, settings=settings)
    for name in stages.split(","):
        with pytest.raises(KeyboardInterrupt):
            pretrain(
                [documents_path],
                out=stopped,
                settings=settings,
                resume=True,
                progress=StopIn(name, at=stop_at),
            )
    result = pretrain([documents_path], out=stopped, settings=settings, resume=True)
    ours, theirs = weights_of(stopped), weights_of(straight)
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert metrics_of(stopped) == metrics_of(straight)
    assert result.valid_loss == expected.valid_loss


@pytest.mark.parametrize(
    ("preset", "own_scale", "text_share"), [("lab", 0.2 / 12**0.5, 0.75), ("modern", 0.02, 1.0)]
)
def test_words_are_larger_than_the_start_of_the_family(
    documents_path: Path, tmp_path: Path, preset: str, own_scale: float, text_share: float
) -> None:
    """As they occur, and in the columns that they fill; the others keep their random start."""
    pretrain([documents_path], out=tmp_path / "run", settings=settings_of(preset, "words"))
    run = load_run(tmp_path / "run", kind="language-model")
    table_VD = run.model.backbone.embedding.weight.detach()
    num_filled = round(text_share * table_VD.shape[1])
    lines = documents_path.read_text(encoding="utf-8").splitlines()
    ids = torch.tensor([token for line in lines for token in run.tokenizer.encode(line)])
    vectors_ND = table_VD[ids, :num_filled]
    scale = float((vectors_ND - vectors_ND.mean(dim=0)).square().mean().sqrt())
    assert scale == pytest.approx(2.6 * own_scale, rel=0.1)
    if num_filled < table_VD.shape[1]:
        kept = float(table_VD[:, num_filled:].std(dim=0).mean())
        assert kept == pytest.approx(own_scale, rel=0.1)


@pytest.mark.parametrize("preset", ["lab", "bert", "modern"])
def test_untrained_layers_read_a_text_as_the_mean_of_its_words(
    documents_path: Path, tmp_path: Path, preset: str
) -> None:
    """So the first step of the next stage starts from what the words know."""
    settings = settings_of(preset, "words")
    pretrain([documents_path], out=tmp_path / "run", settings=settings)
    run = load_run(tmp_path / "run", kind="language-model")
    backbone = run.model.backbone.eval()
    assert isinstance(backbone, Transformer)
    lines = documents_path.read_text(encoding="utf-8").splitlines()[:40]
    texts = [torch.tensor([run.tokenizer.encode(line)]) for line in lines]
    with torch.no_grad():
        words_ND = torch.cat([backbone.embed(ids).mean(dim=1) for ids in texts])
        read_ND = torch.cat(
            [
                pool(
                    backbone(ids),
                    real_BT=torch.ones_like(ids, dtype=torch.bool),
                    pooling=settings.head.pooling,
                )
                for ids in texts
            ]
        )
    correlation = np.corrcoef(*(_similarities(vectors) for vectors in (words_ND, read_ND)))[0, 1]
    assert correlation > 0.8


def test_sinusoids_give_all_texts_nothing_in_common(documents_path: Path, tmp_path: Path) -> None:
    """What they have in common moves fine-tuned classes apart, as dropout changes its size."""
    settings = settings_of("lab", "words")
    pretrain([documents_path], out=tmp_path / "run", settings=settings)
    run = load_run(tmp_path / "run", kind="language-model")
    backbone = run.model.backbone.eval()
    assert isinstance(backbone, Transformer)
    lines = documents_path.read_text(encoding="utf-8").splitlines()
    with torch.no_grad():
        texts = [torch.tensor([run.tokenizer.encode(line)]) for line in lines]
        tokens_ND = torch.cat([backbone.embed(ids)[0] for ids in texts])
        alone_ND = (
            torch.cat([backbone.embedding(ids)[0] for ids in texts]) * settings.model.width**0.5
        )
    positions_D = (tokens_ND - alone_ND).mean(dim=0)
    assert float(positions_D.square().mean().sqrt()) > 0.5
    text_columns = slice(0, round(0.75 * settings.model.width))
    common_D = tokens_ND.mean(dim=0)[text_columns]
    assert float(common_D.square().mean().sqrt()) < 0.2 * float(tokens_ND.std())


def test_layers_of_the_lab_look_evenly_until_they_learn(
    documents_path: Path, tmp_path: Path
) -> None:
    """Attention that fine-tuning changes is what dropout disturbs most."""
    settings = settings_of("lab", "words")
    pretrain([documents_path], out=tmp_path / "run", settings=settings)
    backbone = load_run(tmp_path / "run", kind="language-model").model.backbone.eval()
    weights_LBHTT = backbone.attention_weights(torch.tensor([[0, 5, 6, 7, 2]]))
    even_TT = torch.tril(torch.ones(5, 5)) / torch.arange(1, 6).unsqueeze(1)
    torch.testing.assert_close(weights_LBHTT, even_TT.expand_as(weights_LBHTT))


def _similarities(vectors_ND: torch.Tensor) -> np.ndarray:
    """Of every pair of texts, without what all have in common."""
    unit_ND = torch.nn.functional.normalize(vectors_ND - vectors_ND.mean(dim=0), dim=1)
    above = torch.ones(len(unit_ND), len(unit_ND)).triu(diagonal=1).bool()
    return (unit_ND @ unit_ND.T)[above].numpy()


def test_contrast_finds_halves_better_than_chance(documents_path: Path, tmp_path: Path) -> None:
    settings = settings_of("modern", "words,documents", **{"train.steps": 60, "train.lr": 3e-3})
    result = pretrain([documents_path], out=tmp_path / "run", settings=settings)
    assert result.readings["valid_halves_found"] > 2 / 8


def test_micro_batches_change_nothing(documents_path: Path, tmp_path: Path) -> None:
    found = []
    for number, tokens in enumerate((16_384, 64)):
        settings = settings_of("lab", "documents+language", **{"model.dropout": 0})
        settings = replace(settings, "train", micro_batch_tokens=tokens, steps=3)
        pretrain([documents_path], out=tmp_path / str(number), settings=settings)
        found.append(weights_of(tmp_path / str(number)))
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, atol=1e-5, rtol=1e-4)


def test_documents_too_short_to_halve_are_counted(tmp_path: Path, documents_path: Path) -> None:
    path = tmp_path / "short.txt"
    short = "\n".join(f"{word} {word}" for word in WORDS[:40])
    path.write_text(f"{documents_path.read_text()}\n{short}", encoding="utf-8")
    progress = Recorder()
    pretrain([path], out=tmp_path / "run", settings=settings_of("lab", TOGETHER), progress=progress)
    assert any(
        "of the documents have fewer than 16 tokens and cannot be halved" in message
        for message in progress.messages
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (" ".join(WORDS * 10), "1 documents have 16 tokens or more"),
        ("\n".join([" ".join(WORDS)] * 150), "all documents are alike"),
    ],
)
def test_text_that_contrast_cannot_use_goes_on_to_language(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    progress = Recorder()
    settings = settings_of("lab", TOGETHER, **{"train.valid_share": 0})
    result = pretrain([path], out=tmp_path / "run", settings=settings, progress=progress)
    assert any(f"note: {problem}" in message for message in progress.messages)
    assert [stage["name"] for stage in result.stages] == ["language"]


def test_vocabulary_without_words_skips_their_stage(documents_path: Path, tmp_path: Path) -> None:
    progress = Recorder()
    settings = settings_of("lab", TOGETHER, **{"tokenizer.size": 262})
    result = pretrain([documents_path], out=tmp_path / "run", settings=settings, progress=progress)
    assert any("hence no words" in message for message in progress.messages)
    assert [stage["name"] for stage in result.stages] == ["documents+language"]


@pytest.mark.parametrize(
    ("preset", "stages", "problem"),
    [
        ("lab", "language,words", "words comes first"),
        ("lab", "words,words", "words is there twice"),
        ("lab", "wrods", "Did you mean 'words'?"),
        ("bert", "words,documents+language", "write documents,language"),
        ("bag", "words", "the bag family learns in one stage"),
    ],
)
def test_stages_that_cannot_be_are_refused(preset: str, stages: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"objective\.stages") as caught:
        resolve("pretrain", preset=preset, overrides={"objective.stages": stages})
    assert problem in str(caught.value)


def test_resume_with_other_stages_is_refused(documents_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        pretrain(
            [documents_path],
            out=out,
            settings=settings_of("lab", ALL),
            progress=Recorder(interrupt_at=1),
        )
    with pytest.raises(RunFolderError, match=r"objective\.stages was"):
        pretrain([documents_path], out=out, settings=settings_of("lab", TOGETHER), resume=True)


def test_base_keeps_its_embeddings(documents_path: Path, tmp_path: Path) -> None:
    settings = settings_of("lab", TOGETHER)
    pretrain([documents_path], out=tmp_path / "base", settings=settings)
    more = resolve("pretrain", base=settings, overrides={"train.steps": 2, "data.max_length": 24})
    assert more.objective.stages == "documents+language"
    result = pretrain(
        [documents_path], base=tmp_path / "base", out=tmp_path / "more", settings=more
    )
    assert [stage["name"] for stage in result.stages] == ["documents+language"]
    with pytest.raises(ConfigError, match="words would replace the embeddings of the base"):
        resolve("pretrain", base=settings, overrides={"objective.stages": "words"})


def test_exact_loss_is_validated(documents_path: Path, tmp_path: Path) -> None:
    losses = []
    for name, num_tokens in (("sampled", 64), ("exact", None)):
        settings = settings_of("lab", "language")
        settings = replace(settings, "objective", sampled_tokens=num_tokens)
        settings = replace(settings, "train", steps=1, lr=1e-9)
        losses.append(pretrain([documents_path], out=tmp_path / name, settings=settings).valid_loss)
    # The sampled one starts from frequencies, the lab's own from nothing.
    assert losses[0] < losses[1] - 0.3
    assert np.isfinite(losses).all()


def test_number_of_bags_without_their_stage_is_refused() -> None:
    overrides = {"objective.stages": "documents", "objective.num_bags": 2}
    with pytest.raises(ConfigError, match="num_bags: 2 has no effect"):
        resolve("pretrain", preset="lab", overrides=overrides)

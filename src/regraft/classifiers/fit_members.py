"""Makes the members of `regraft fit`: regressions on text, labelled examples and an encoder.

How they are weighed is the business of judging.py.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regraft.classifiers.base_table import FoldedModel
from regraft.classifiers.base_table_making import fold_bases
from regraft.classifiers.embeddings import BaseSpace, EmbeddingModel, KeptVectors, base_dir
from regraft.classifiers.fit_bases import can_teach, make_bases
from regraft.classifiers.fit_plan import Clock, FitLimit
from regraft.classifiers.logistic import (
    RegressionModel,
    TextSpace,
    TunedRegression,
    fit_in_space,
)
from regraft.classifiers.tfidf import fit_latent, fit_linear
from regraft.config import Settings
from regraft.data import (
    Domain,
    Example,
    Labels,
    Tokenizer,
    TokenStore,
    find_domain,
    known_share,
    labels_of,
    open_store,
    read_documents,
    write_store,
    write_view,
)
from regraft.runtime import Progress, in_percent
from regraft.training import LoadedRun, RunFolder, load_run

# The most unlabelled texts that the latent member reads: it holds their words in memory.
LATENT_TEXTS = 50_000
# It may take this share of the minutes, and reads a text in about so long.
LATENT_SHARE = 0.15
LATENT_SECONDS_PER_TEXT = 0.005
FEWEST_LATENT_TEXTS = 1_000

# If the tokens of the labelled texts cover less than this share of the usual, a warning says so.
FOREIGN_SHARE = 0.6
# Unlabelled documents that show what the text is like.
DOCUMENTS_LOOKED_AT = 2_000

# In a run folder: vectors of labelled texts, for `--resume` and `fit --update`.
VECTORS_NAME = "vectors"


@dataclass(frozen=True)
class Ingredients:
    """What the members of one fit are made from, where, and with how much time.

    The last of the `texts` holds the texts of the examples.
    """

    texts: Sequence[str | Path]
    examples: Sequence[Example]
    valid_examples: Sequence[Example]
    encoder: LoadedRun | None
    folder: RunFolder
    tokenizer: Tokenizer
    settings: Settings
    limit: FitLimit
    clock: Clock
    progress: Progress

    @property
    def labels(self) -> Labels:
        """The labels of the examples."""
        return labels_of(self.examples)

    @property
    def seed(self) -> int:
        """The seed of folds and spaces."""
        return self.settings.train.seed

    def fitted_in(self, space: TextSpace) -> TunedRegression:
        """A regression on the vectors of the examples."""
        return fit_in_space(
            space,
            self.examples,
            self.valid_examples,
            labels=self.labels,
            seed=self.seed,
            progress=self.progress,
        )

    def embedding(self, bases: Sequence[LoadedRun]) -> EmbeddingModel:
        """A regression on the vectors of networks, which are kept."""
        space = BaseSpace(bases)
        kept = KeptVectors(space, self.folder.run_dir / VECTORS_NAME)
        return EmbeddingModel(self.fitted_in(kept), space)


@dataclass(frozen=True)
class Corpus:
    """All text as tokens, and the part of it that the bases and the latent member learn from.

    `paths` are the files without labels. `store` holds all of the text; `store_dir` and
    `num_documents` describe the documents of the `domain`, or all of them if it is None.
    """

    paths: Sequence[str | Path]
    store: TokenStore
    store_dir: Path
    num_documents: int
    domain: Domain | None


def read_corpus(given: Ingredients) -> Corpus:
    """Tokenize the texts, and find the documents that are like the labelled ones."""
    tokens_dir, paths, tokenizer = given.folder.tokens_dir, given.texts[:-1], given.tokenizer
    write_store(
        given.texts,
        data=given.settings.data,
        tokenizer=tokenizer,
        store_dir=tokens_dir,
        progress=given.progress,
    )
    store = open_store(tokens_dir, tokenizer=tokenizer)
    _warn_of_language(paths, given)
    labelled = [example.text for example in given.examples]
    found = find_domain(store, labelled, tokenizer=tokenizer, seed=given.seed)
    if found is None:
        return Corpus(paths, store, tokens_dir, store.num_documents, domain=None)
    domain, alike = found
    given.progress.say(
        f"{alike.num_documents:,} of {store.num_documents:,} documents, "
        f"{in_percent(alike.num_tokens / store.num_tokens, digits=0)} of the tokens, are like the "
        "labelled ones; "
        "the rest is not used."
    )
    write_view(alike, tokenizer=tokenizer, store_dir=tokens_dir / "alike")
    return Corpus(paths, store, tokens_dir / "alike", alike.num_documents, domain)


def fit_members(
    corpus: Corpus, given: Ingredients
) -> tuple[dict[str, RegressionModel], list[float]]:
    """(all members by name, passes of each base over the text)."""
    # The bases come last, so that they get all the time that the others leave.
    given.progress.say("Fitting the members linear and latent.")
    members: dict[str, RegressionModel] = {
        "linear": fit_linear(
            given.examples, given.valid_examples, labels=given.labels, seed=given.seed
        ),
        "latent": fit_latent(
            given.examples,
            given.valid_examples,
            labels=given.labels,
            texts=_latent_texts(corpus, given),
            seed=given.seed,
            progress=given.progress,
        ),
    }
    if given.encoder is not None:
        given.progress.say("Fitting the member on the vectors of the encoder.")
        members["encoder"] = given.embedding([given.encoder])
    given.clock.save()
    features, passes = _fit_features(corpus, given)
    if features is not None:
        members["features"] = features
    return members, passes


def _fit_features(corpus: Corpus, given: Ingredients) -> tuple[RegressionModel | None, list[float]]:
    """(member on the vectors of bases, passes of each base over the text).

    Bags are folded into one table, others are kept. Without text that can teach any: None, [].
    """
    settings, folder, progress = given.settings, given.folder, given.progress
    if not can_teach(corpus.store, settings=settings, progress=progress):
        return None, []
    plan = make_bases(
        corpus.store_dir,
        folder=folder,
        settings=settings,
        tokenizer=given.tokenizer,
        num_examples=len(given.examples) + len(given.valid_examples),
        limit=given.limit,
        clock=given.clock,
        progress=progress,
    )
    progress.say("Fitting the member on the vectors of the bases.")
    run_dirs = [base_dir(folder.run_dir, number) for number in range(len(plan.base_steps))]
    if settings.model.traits.has_layers or settings.head.pooling != "mean":
        return given.embedding([load_run(run_dir) for run_dir in run_dirs]), plan.passes
    space = fold_bases(
        run_dirs,
        store=open_store(corpus.store_dir, tokenizer=given.tokenizer),
        tokenizer=given.tokenizer,
        max_length=settings.data.max_length,
        progress=progress,
    )
    return FoldedModel(given.fitted_in(space), space), plan.passes


def _latent_texts(corpus: Corpus, given: Ingredients) -> Iterator[str]:
    """The documents that the latent member reads: fewer where the minutes are short."""
    documents: Iterable[str] = (
        document.text for document in read_documents(corpus.paths, data=given.settings.data)
    )
    if corpus.domain is not None:
        documents = corpus.domain.texts(documents, tokenizer=given.tokenizer)
    most, minutes = LATENT_TEXTS, given.limit.minutes
    if minutes is not None:
        affordable = int(LATENT_SHARE * 60 * minutes / LATENT_SECONDS_PER_TEXT)
        most = min(max(affordable, FEWEST_LATENT_TEXTS), LATENT_TEXTS)
    return itertools.islice(documents, 0, None, -(-corpus.num_documents // most))


def _warn_of_language(paths: Sequence[str | Path], given: Ingredients) -> None:
    """Warn if the tokenizer covers the labelled texts far less than the unlabelled text."""
    documents = itertools.islice(
        read_documents(paths, data=given.settings.data), DOCUMENTS_LOOKED_AT
    )
    usual = token_coverage(given.tokenizer, [document.text for document in documents])
    here = token_coverage(given.tokenizer, [example.text for example in given.examples])
    if here < FOREIGN_SHARE * usual:
        given.progress.say(
            f"A token of the labelled texts covers {here:.1f} known bytes, one of the unlabelled "
            f"text {usual:.1f}: they look like another language or kind of text, so the unlabelled "
            "text will help little."
        )


def token_coverage(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Bytes per token times the share of known tokens: low for another language."""
    num_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    num_tokens = sum(map(len, tokenizer.encode_batch(texts)))
    return num_bytes / max(num_tokens, 1) * known_share(tokenizer, texts)

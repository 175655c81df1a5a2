"""A labelling session: its labels, what was learned from them so far, and how good it is.

A thread computes the embeddings once, and fits a regression on them after every label; labelling
never waits for it. next_text.py chooses the text.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from regraft.apps.serve.limits import RefusedError
from regraft.apps.studio.fit_process import Trainer, Training
from regraft.apps.studio.labelfile import LabelFile, LabelRecord
from regraft.apps.studio.next_text import QUERIES, Offer, Query, Use, choose_offer
from regraft.classifiers import FEWEST_LABELS, fit_regression, load_classifier, unit_length
from regraft.data import Document, Labels, normalised, without_duplicates
from regraft.errors import DataError, RegraftError
from regraft.stats import CONFIDENCE

_LOGGER = logging.getLogger(__name__)
MOST_TEXTS = 20_000
MOST_CLASSES = 9  # a key each
MOST_CLASS_CHARACTERS = 60
SHOWN_CHARACTERS = 200  # of each of the last labels

# A file and a row: in a folder, each text is in row 1 of its file.
Place = tuple[str, int]
Vectors = Callable[[Sequence[str]], Float[np.ndarray, "N D"]]


class Session:
    """The state of one session; every method may be called by any thread."""

    def __init__(
        self,
        documents: Sequence[Document],
        *,
        file: LabelFile,
        vectors: Vectors,
        cells: Mapping[Place, Mapping[str, str]] | None = None,
        classes: Sequence[str] = (),
        trainer: Trainer | None = None,
        seed: int = 0,
    ) -> None:
        """`classes` may be empty: then the saved ones are used, or the page asks for them.

        `cells` are the other columns of the texts by their place. Without a `trainer` the page
        cannot train.
        """
        self._file = file
        self._vectors = vectors
        self._seed = seed
        filled = [one for one in documents if one.text.strip()]
        distinct = without_duplicates(filled)
        self._num_duplicates = len(filled) - len(distinct)
        kept = distinct[:MOST_TEXTS]
        self._texts = [one.text for one in kept]
        self._places = [(one.source, one.row) for one in kept]
        self._cells = cells or {}
        self._training = None if trainer is None else Training(trainer, on_run=self._ask_run)
        self._add_labelled_texts()
        self._number = {normalised(text): number for number, text in enumerate(self._texts)}
        self._classes = checked_classes(classes) if classes else file.load_classes()
        self._check_labels_known()
        if classes:
            file.save_classes(self._classes)
        self._query: Query = "uncertainty"
        self._offer: Offer | None = None
        # Skipped texts, with the number of labels at that time: undo goes back in that order.
        self._skips: list[tuple[int, Offer]] = []
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._is_closed = False
        self._trouble = ""
        self._vectors_ND: Float[np.ndarray, "N D"] | None = None
        self._chances_NC: Float[np.ndarray, "N C"] | None = None
        self._num_learned = 0
        # Of the run that was trained last: its labels, and their probabilities for all texts.
        self._of_run: tuple[tuple[str, ...], Float[np.ndarray, "N L"]] | None = None
        # By number of labels: the predictions for all texts, for evaluation labels that come later.
        self._points: dict[int, Int[np.ndarray, " N"]] = {}
        self._thread = threading.Thread(target=self._learn_on, name="regraft-learn", daemon=True)

    def start(self) -> None:
        """Start learning in the background."""
        self._wake.set()
        self._thread.start()
        if self._training is not None:
            self._training.begin()

    def close(self) -> None:
        """Stop learning and training, and release the file; all labels are in it already."""
        if self._training is not None:
            self._training.close()
        self._is_closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._file.close()

    def state(self) -> dict[str, Any]:
        """Everything that the page shows, except the text itself."""
        with self._lock:
            records, num_train = self._file.records, len(self._records("train"))
            counts = dict.fromkeys(self._classes, 0)
            for record in records:
                counts[record.label] += 1
            return {
                "classes": list(self._classes),
                "counts": counts,
                "num_texts": len(self._texts),
                "num_duplicates": self._num_duplicates,
                "num_labelled": len(records),
                "num_train": num_train,
                "num_evaluation": len(records) - num_train,
                "file": self._file.path.name,
                "can_undo": bool(records or self._skips),
                "training": None if self._training is None else self._training.state(),
                "can_train": len(records) >= FEWEST_LABELS and sum(map(bool, counts.values())) > 1,
                "num_needed": FEWEST_LABELS,
                "query": self._query,
                "queries": QUERIES,
                "is_ready": self._vectors_ND is not None,
                "num_learned": self._num_learned,
                "trouble": self._trouble,
                "curve": self._curve(),
                "last": [
                    {"text": shortened(record.text), "label": record.label, "use": record.use}
                    for record in records[-5:][::-1]
                ],
            }

    def choose_classes(self, names: Sequence[str]) -> None:
        """Name the classes, once, before the first label."""
        with self._lock:
            if self._file.records:
                raise RefusedError(
                    409,
                    f"There are {len(self._file.records):,} labels of the classes "
                    f"{', '.join(self._classes)}.",
                    remedy="Start the studio with another --out for other classes.",
                )
            classes = checked_classes(names)
            self._file.save_classes(classes)
            self._classes = classes

    def choose_query(self, query: Query) -> None:
        """How texts are chosen from now on."""
        with self._lock:
            self._query, self._offer = query, None

    def next_text(self) -> dict[str, Any]:
        """The text to label now; asked again, the same one."""
        with self._lock:
            self._check_classes()
            if self._offer is None:
                self._offer = self._chosen()
            if self._offer is None:
                return {"number": None}
            offer = self._offer
            guess = None
            # A guess shown would lean on the hand that evaluation.
            chances_NC = self._chances()
            if chances_NC is not None and offer.use == "train":
                chances_C = chances_NC[offer.number]
                best = int(chances_C.argmax())
                guess = {"label": self._classes[best], "probability": float(chances_C[best])}
            return {
                "number": offer.number,
                "text": self._texts[offer.number],
                "place": self._shown_place(offer.number),
                "use": offer.use,
                "query": offer.query,
                "guess": guess,
            }

    def label(self, number: int, label: str) -> None:
        """Write the label of the text that is shown; on disk when this returns."""
        with self._lock:
            self._check_classes()
            offer = self._shown(number)
            if label not in self._classes:
                raise RefusedError(
                    422,
                    f"{label!r:.60} is no class of this session.",
                    f"They are {', '.join(self._classes)}.",
                    remedy="Take one of them.",
                )
            self._file.append(
                LabelRecord(
                    text=self._texts[number],
                    label=label,
                    use=offer.use,
                    query=offer.query,
                    row=self._places[number][1],
                    cells=self._cells.get(self._places[number], {}),
                )
            )
            self._offer = None
        self._wake.set()

    def train(self) -> None:
        """Train on the labels given so far, in the background."""
        with self._lock:
            labels = [record.label for record in self._file.records]
        self._required_training().start(num_labels=len(labels), num_classes=len(set(labels)))

    def stop_training(self) -> None:
        """Stop the training that is running, if one is."""
        self._required_training().stop()

    def skip(self, number: int) -> None:
        """Leave a text aside until the next start."""
        with self._lock:
            self._skips.append((len(self._file.records), self._shown(number)))
            self._offer = None

    def undo(self) -> bool:
        """Take back what was done last, a label or a skip, and show its text; False if nothing."""
        with self._lock:
            if self._skips and self._skips[-1][0] == len(self._file.records):
                self._offer = self._skips.pop()[1]
                return True
            record = self._file.undo()
            if record is None:
                return False
            number = self._number[normalised(record.text)]
            self._offer = Offer(number, record.use, record.query)
            num_train = len(self._records("train"))
            self._points = {num: said for num, said in self._points.items() if num <= num_train}
            if self._num_learned > num_train:
                self._num_learned = 0  # what was learned holds a label that is no more
        self._wake.set()
        return True

    def _required_training(self) -> Training:
        if self._training is None:
            raise RefusedError(
                409,
                "These texts cannot be trained on here.",
                "`regraft fit` reads texts and labels in one encoding, and labels are UTF-8.",
                remedy="Convert the texts to UTF-8.",
            )
        return self._training

    def _ask_run(self, run_dir: Path) -> None:
        """What a run says of every text; labelling goes on meanwhile."""
        try:
            classifier = load_classifier(run_dir)
            probabilities_NL = classifier.predict_proba(self._texts)
        except RegraftError as error:
            self._trouble = f"{run_dir.name} cannot be asked: {error.problem}"
            return
        with self._lock:
            self._of_run = classifier.labels, probabilities_NL

    def _chances(self) -> Float[np.ndarray, "N C"] | None:
        """The chances of all texts and classes: by the run trained last, else as learned here."""
        if self._of_run is None:
            return self._chances_NC
        labels, probabilities_NL = self._of_run
        known = [name for name in self._classes if name in labels]
        if not known:
            return self._chances_NC
        chances_NC = np.zeros((len(self._texts), len(self._classes)))
        columns = [self._classes.index(name) for name in known]
        chances_NC[:, columns] = probabilities_NL[:, [labels.index(name) for name in known]]
        return chances_NC

    def _shown(self, number: int) -> Offer:
        if self._offer is None or self._offer.number != number:
            raise RefusedError(
                409,
                f"Text {number:,} is not the one that is asked for now.",
                remedy="Take the one that is shown now; another window may be labelling, too.",
            )
        return self._offer

    def _records(self, use: Use) -> list[LabelRecord]:
        return [record for record in self._file.records if record.use == use]

    def _chosen(self) -> Offer | None:
        return choose_offer(
            len(self._texts),
            seen=[self._number[normalised(record.text)] for record in self._file.records],
            skipped=[offer.number for _, offer in self._skips],
            query=self._query,
            chances_NC=self._chances(),
            vectors_ND=self._vectors_ND,
            seed=self._seed,
        )

    def _curve(self) -> list[dict[str, Any]]:
        evaluation = self._records("evaluation")
        if not evaluation:
            return []
        numbers = [self._number[normalised(record.text)] for record in evaluation]
        targets = np.array([self._classes.index(record.label) for record in evaluation])
        points = []
        for num_train, predicted_N in sorted(self._points.items()):
            num_right = int((predicted_N[numbers] == targets).sum())
            low, high = share_interval(num_right, len(evaluation))
            points.append(
                {
                    "num": num_train,
                    "accuracy": num_right / len(evaluation),
                    "low": low,
                    "high": high,
                }
            )
        return points

    def _learn_on(self) -> None:
        """The work of the thread; labels are saved whatever happens here."""
        try:
            self._vectors_ND = unit_length(self._vectors(self._texts))
            while not self._is_closed:
                self._wake.wait()
                self._wake.clear()
                self._learn_all()
        except Exception as error:
            reason = error.problem if isinstance(error, RegraftError) else "it failed; see the log."
            if not isinstance(error, RegraftError):
                _LOGGER.error("learning failed", exc_info=error)
            self._trouble = f"Learning has stopped: {reason} Labels are still saved."

    def _learn_all(self) -> None:
        with self._lock:
            records = self._records("train")
        for num in curve_places(len(records)):
            if self._is_closed or self._wake.is_set():
                return  # something newer to learn comes first
            self._learn(records[:num])

    def _learn(self, records: Sequence[LabelRecord]) -> None:
        """One point of the curve; the newest model chooses the next text."""
        num = len(records)
        with self._lock:
            is_newest = num == len(self._records("train"))
            is_known = num in self._points and (not is_newest or self._num_learned == num)
        targets = np.array([self._classes.index(record.label) for record in records])
        if is_known or len(set(targets.tolist())) < 2:
            return
        assert self._vectors_ND is not None
        numbers = [self._number[normalised(record.text)] for record in records]
        model = fit_regression(
            self._vectors_ND[numbers], targets, labels=Labels(self._classes), seed=self._seed
        )
        chances_NC = model.probabilities(unit_length(self._vectors_ND))
        with self._lock:
            if self._records("train")[:num] != list(records):
                return  # one of them was undone meanwhile
            self._points[num] = chances_NC.argmax(axis=1)
            # Not only the newest: when labels come faster than fits, it would never be used.
            if num >= self._num_learned:
                self._chances_NC, self._num_learned = chances_NC, num

    def _add_labelled_texts(self) -> None:
        """Keep labels of texts that are no longer in the file of texts."""
        present = {normalised(text) for text in self._texts}
        for record in self._file.records:
            if normalised(record.text) not in present:
                present.add(normalised(record.text))
                self._texts.append(record.text)
                self._places.append(("", record.row))

    def _shown_place(self, number: int) -> str:
        """The row of a text, or its file if it is one of a folder."""
        source, row = self._places[number]
        name = self._cells.get((source, row), {}).get("file", "")
        return name if name and Path(source).name == Path(name).name else f"Row {row:,}"

    def _check_classes(self) -> None:
        if not self._classes:
            raise RefusedError(
                409, "The classes have no names yet.", remedy="Name them on the page, or --labels."
            )

    def _check_labels_known(self) -> None:
        unknown = {record.label for record in self._file.records} - set(self._classes)
        if unknown:
            raise DataError(
                f"{self._file.path} holds the label {min(unknown)!r:.60}, which is no class here.",
                f"The classes are {', '.join(self._classes) or 'not known'}.",
                remedy="Pass --labels with every label in that file, or give another --out.",
            )


def curve_places(num_labels: int) -> list[int]:
    """The newest point first, then those that draw the curve: closer together at its beginning."""
    grid = [*range(2, 20, 2), *range(20, 100, 5), *range(100, 400, 20), *range(400, 20_000, 100)]
    return [num_labels, *(num for num in grid if num < num_labels)]


def shortened(text: str) -> str:
    """As much of a text as a list of the last labels shows."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1].rstrip() + "…"


def checked_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Two to nine different names, each short enough for a button."""
    classes = tuple(name.strip() for name in names)
    problem = ""
    if not 2 <= len(classes) <= MOST_CLASSES:
        problem = f"There are {len(classes)} classes."
    elif len(set(classes)) < len(classes):
        problem = f"A class is named twice: {', '.join(classes)}."
    elif not all(
        1 <= len(name) <= MOST_CLASS_CHARACTERS and name.isprintable() for name in classes
    ):
        problem = f"A class has no name, or one of more than {MOST_CLASS_CHARACTERS} characters."
    if problem:
        raise DataError(
            problem,
            f"There are 2 to {MOST_CLASSES}, for each has a key.",
            remedy="Name them, for example: negative, positive.",
        )
    return classes


def share_interval(num_right: int, num: int) -> tuple[float, float]:
    """Wilson's interval of a share: honest for a handful of texts, too."""
    from scipy.stats import norm

    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    share, spread = num_right / num, z * z / num
    middle = (share + spread / 2) / (1 + spread)
    reach = (spread * share * (1 - share) + (spread / 2) ** 2) ** 0.5 / (1 + spread)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)

"""The classifier that `regraft fit` leaves behind: members, and how much each has to say.

Comes in: a folder, or the parts themselves. Goes out: labels and probabilities for texts. Only JSON
and safetensors lie in the folder. How the members were made is fit.py's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.baselines import LatentModel, LinearModel
from regraft.blend import blended
from regraft.errors import RunFolderError
from regraft.evaluate import Evaluation, evaluation
from regraft.features import document_vectors
from regraft.regression import VectorModel
from regraft.runfolder import LoadedRun, load_run, read_info, read_settings
from regraft.runtime import SILENT, Progress
from regraft.text import Labels, check_labels_known, load_examples

Member = LinearModel | LatentModel | VectorModel
MEMBERS: dict[str, type[Member]] = {
    "linear": LinearModel,
    "latent": LatentModel,
    "features": VectorModel,
}


@dataclass(frozen=True)
class FittedClassifier:
    """Members and their weights; `bases` make the vectors that the member `features` reads."""

    labels: tuple[str, ...]
    bases: Sequence[LoadedRun]
    members: Mapping[str, Member]
    weights: Mapping[str, float]
    temperature: float

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in the order of the columns of `predict_proba`."""
        return np.array(self.labels)

    def predict_proba(
        self, texts: Sequence[str], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C calibrated probabilities."""
        if not texts:
            return np.zeros((0, len(self.labels)))
        chances = self.member_probabilities(texts, progress=progress)
        return self.blended(chances)

    def member_probabilities(
        self, texts: Sequence[str], *, progress: Progress = SILENT
    ) -> dict[str, NDArray[np.float64]]:
        """What each member says by itself."""
        chances = {}
        for name, member in self.members.items():
            if isinstance(member, VectorModel):
                vectors_ND = document_vectors(self.bases, texts, progress=progress)
                chances[name] = member.vector_probabilities(vectors_ND)
            else:
                chances[name] = member.probabilities(texts)
        return chances

    def blended(self, chances: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """What all members say together, given what each says."""
        weights_M = np.array([self.weights[name] for name in chances])
        chances_MNC = np.stack(list(chances.values()))
        mixed_NC: NDArray[np.float64] = blended(
            chances_MNC, weights_M, temperature=self.temperature
        )
        return mixed_NC

    def predict(self, texts: Sequence[str]) -> NDArray[Any]:
        """The most probable label of every text."""
        predicted: NDArray[Any] = self.classes_[self.predict_proba(texts).argmax(axis=1)]
        return predicted


def load_fitted(run_dir: Path) -> FittedClassifier:
    """The classifier in a folder of `regraft fit`."""
    info = read_info(run_dir)
    if info.kind != "blend" or info.status != "complete":
        raise RunFolderError(
            f"{run_dir} holds no classifier of `regraft fit` that is complete.",
            remedy="Repeat the command that began it with --resume, or name another folder.",
        )
    result: dict[str, Any] = info.result
    members = {name: MEMBERS[name].load(run_dir / "members" / name) for name in result["weights"]}
    bases = [load_run(base_dir(run_dir, number)) for number in range(result["num_bases"])]
    return FittedClassifier(
        labels=info.labels,
        bases=bases,
        members=members,
        weights=result["weights"],
        temperature=result["temperature"],
    )


def base_dir(run_dir: Path, number: int) -> Path:
    """The run folder of a base, in the order they were made in."""
    return run_dir / "bases" / str(number)


def evaluate_fitted(
    run_dir: Path, path: str | Path, *, data: Any = None, progress: Progress = SILENT
) -> dict[str, Evaluation]:
    """The blend on a labelled file, and each member beside it."""
    fitted = load_fitted(run_dir)
    labels = Labels(fitted.labels)
    examples = load_examples(path, data=data or read_settings(run_dir).data)
    check_labels_known(examples, labels)
    targets_N = labels.targets(examples)
    texts = [example.text for example in examples]
    chances = fitted.member_probabilities(texts, progress=progress)
    both = {"blend": fitted.blended(chances), **chances}
    return {
        name: evaluation(chances_NC, targets_N=targets_N, labels=labels, cut_share=0.0)
        for name, chances_NC in both.items()
    }

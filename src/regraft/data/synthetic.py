"""Synthetic English product reviews from a grammar, for use without a network.

The same on every machine. Words have many synonyms, so that unlabelled text helps when labels are
few; negation, contrast and hearsay keep a bag of words from being perfect.
"""

import random
from collections.abc import Sequence
from typing import Literal

from regraft.data.text.records import Example

Polarity = Literal["positive", "negative"]

_OPPOSITE: dict[Polarity, Polarity] = {"positive": "negative", "negative": "positive"}


def _family(words: str) -> tuple[str, ...]:
    return tuple(words.split())


# Sorted from common to rare: a word is drawn about in proportion to 1 / rank, as in real text, so
# that a few hundred labelled reviews show only the head of each family.
_QUALITIES: dict[Polarity, tuple[str, ...]] = {
    "positive": _family(
        """good great solid lovely reliable comfortable excellent sturdy bright smooth quiet clear
        handy pleasant superb elegant accurate generous crisp durable responsive clever delightful
        flawless gentle neat precise robust sharp sleek splendid steady stylish tidy charming
        wonderful efficient brilliant dependable exquisite graceful impressive marvellous polished
        refined spotless sublime supple tasteful terrific well-made outstanding first-rate
        faultless admirable"""
    ),
    "negative": _family(
        """bad poor flimsy ugly unreliable uncomfortable terrible wobbly dull rough noisy blurry
        clumsy unpleasant dreadful cheap inaccurate stingy grainy fragile sluggish silly annoying
        faulty harsh messy vague brittle blunt bulky awful shaky tacky grubby irritating
        horrible wasteful useless erratic crude awkward disappointing miserable scratched
        sloppy stained mediocre stiff garish pathetic badly-made lousy second-rate
        defective deplorable"""
    ),
}
_VERBS: dict[Polarity, tuple[str, ...]] = {
    "positive": _family(
        """works lasts impresses shines excels delivers delights pleases performs convinces
        endures satisfies charms surpasses thrives"""
    ),
    "negative": _family(
        """fails breaks disappoints leaks stalls overheats annoys rattles jams frustrates
        crumbles irritates sags freezes rusts"""
    ),
}
_FEELINGS: dict[Polarity, tuple[str, ...]] = {
    "positive": _family(
        """happy pleased satisfied thrilled grateful glad delighted impressed content
        overjoyed"""
    ),
    "negative": _family(
        """unhappy annoyed dissatisfied upset angry sorry disgusted disappointed frustrated
        furious"""
    ),
}
_PRODUCTS: dict[str, tuple[str, ...]] = {
    "kettle": ("lid", "handle", "switch", "spout", "heating plate", "cord"),
    "backpack": ("zip", "strap", "fabric", "pocket", "stitching", "buckle"),
    "lamp": ("shade", "switch", "light", "base", "cable", "dimmer"),
    "headset": ("sound", "microphone", "ear pad", "battery", "cable", "headband"),
    "novel": ("plot", "ending", "prose", "dialogue", "cover", "first chapter"),
    "jacket": ("lining", "zip", "hood", "colour", "collar", "fit"),
    "camera": ("lens", "screen", "battery", "menu", "grip", "picture"),
    "chair": ("seat", "back", "armrest", "finish", "leg", "cushion"),
    "game": ("story", "board", "rule book", "artwork", "box", "pace"),
    "blender": ("motor", "blade", "jug", "lid", "button", "cord"),
    "keyboard": ("key", "cable", "backlight", "frame", "space bar", "layout"),
    "tent": ("pole", "fabric", "door", "floor", "seam", "bag"),
}
_DEGREES = ("", "", "", "really ", "very ", "quite ", "truly ", "rather ", "simply ", "so ")
_PEOPLE = ("sister", "neighbour", "brother", "colleague", "mother", "friend", "uncle", "daughter")
_TIMES = (
    "last week",
    "in spring",
    "two months ago",
    "on Monday",
    "before the holidays",
    "a year ago",
)
_PLACES = ("kitchen", "office", "garden", "cabin", "spare room", "workshop", "car", "classroom")
_SELLERS = ("a small shop", "the market", "an online store", "a department store", "a catalogue")


def synthetic_reviews(*, num_documents: int, seed: int) -> list[Example]:
    """Reviews with alternating labels; fewer documents are a prefix of more."""
    examples = []
    for index in range(num_documents):
        label: Polarity = "positive" if index % 2 == 0 else "negative"
        text = _review(random.Random(f"{seed}:{index}"), label)
        examples.append(Example(text, label, "synthetic", index + 1))
    return examples


def _review(draw: random.Random, label: Polarity) -> str:
    product = draw.choice(list(_PRODUCTS))
    parts = list(_PRODUCTS[product])
    draw.shuffle(parts)
    sentences = [_clause(draw, label, part) for part in parts[: draw.randint(2, 3)]]
    if draw.random() < 0.45:
        sentences.append(_contrast(draw, label, parts[-1], parts[-2]))
    if draw.random() < 0.15:
        sentences.append(_hearsay(draw, label, product))
    if draw.random() < 0.35:
        sentences.append(f"I am {_degree(draw)}{_pick(draw, _FEELINGS[label])} about it")
    sentences += draw.sample(_fillers(draw, product), draw.randint(1, 3))
    draw.shuffle(sentences)
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _clause(draw: random.Random, polarity: Polarity, part: str) -> str:
    """A statement of the wanted polarity, direct or as a negated opposite."""
    quality, denied = _QUALITIES[polarity], _QUALITIES[_OPPOSITE[polarity]]
    forms = [
        lambda: f"the {part} is {_degree(draw)}{_pick(draw, quality)}",
        lambda: f"the {part} is {' and '.join(_two(draw, quality))}",
        lambda: f"I find the {part} {_degree(draw)}{_pick(draw, quality)}",
        lambda: f"the {part} {_pick(draw, _VERBS[polarity])} every day",
        lambda: f"the {part} is not {_degree(draw)}{_pick(draw, denied)}",
        lambda: f"I would never call the {part} {_degree(draw)}{_pick(draw, denied)}",
        lambda: f"nothing about the {part} is {_degree(draw)}{_pick(draw, denied)}",
        lambda: f"the {part} never {_pick(draw, _VERBS[_OPPOSITE[polarity]])}",
    ]
    weights = (6, 5, 4, 3, 2, 1, 1, 1)
    return draw.choices(forms, weights)[0]()


def _contrast(draw: random.Random, label: Polarity, part: str, other: str) -> str:
    """A concession to the other side; the clause that carries the verdict is the main one."""
    conceded, meant = _clause(draw, _OPPOSITE[label], part), _clause(draw, label, other)
    forms = (
        f"{conceded}, but {meant}",
        f"although {conceded}, {meant}",
        f"{meant}, even if {conceded}",
    )
    return draw.choice(forms)


def _hearsay(draw: random.Random, label: Polarity, product: str) -> str:
    other = f"my {draw.choice(_PEOPLE)} called this {product}"
    quality = _pick(draw, _QUALITIES[_OPPOSITE[label]])
    return f"{other} {quality} and {draw.choice(('was wrong', 'I disagree', 'I cannot see why'))}"


def _fillers(draw: random.Random, product: str) -> list[str]:
    """Neutral sentences."""
    return [
        f"I bought this {product} {draw.choice(_TIMES)}",
        f"the {product} came from {draw.choice(_SELLERS)}",
        f"it stands in the {draw.choice(_PLACES)} of my {draw.choice(_PEOPLE)}",
        f"the parcel took {draw.randint(2, 9)} days",
        f"this is my {draw.choice(('first', 'second', 'third'))} {product}",
        f"my {draw.choice(_PEOPLE)} asked me about the {product} {draw.choice(_TIMES)}",
        f"we use the {product} in the {draw.choice(_PLACES)}",
    ]


def _degree(draw: random.Random) -> str:
    return draw.choice(_DEGREES)


def _pick(draw: random.Random, words: Sequence[str]) -> str:
    """A word of a family; earlier ones are more frequent."""
    return draw.choices(words, [1 / (rank + 2) for rank in range(len(words))])[0]


def _two(draw: random.Random, words: Sequence[str]) -> list[str]:
    first = _pick(draw, words)
    return [first, _pick(draw, [word for word in words if word != first])]

"""Meanings of English words in tinyworld: synonyms of factor values, kinds of things, and unrelated things.

The grammar (`phrases.py`) says few things in few ways; a language model says them in more. A *concept* is a factor
value or a kind; its phrases mean the same. Some pairs of phrases, and the phrases that the grammar withholds, are shown
to no model in training: they test the text checks on words that the checks do not list.

The domain `roads` has none: it serves the text embedder of LANCE's checks, which the profile `tiny-roads` lacks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from tinyworld.objects.phrases import SLOTS
from tinyworld.objects.world import EDIT_FACTOR

# Further phrases of factor values, beside the grammar's.
SYNONYMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("label", "car"): ("automobile", "sedan", "motorcar", "hatchback"),
    ("label", "bus"): ("coach", "omnibus", "minibus", "double-decker"),
    ("label", "truck"): ("lorry", "pickup", "hauler", "juggernaut"),
    ("label", "boat"): ("ship", "vessel", "yacht", "sailboat", "dinghy"),
    ("label", "plane"): ("airplane", "aeroplane", "airliner", "jetliner"),
    ("label", "balloon"): ("hot-air balloon", "airship", "aerostat", "blimp"),
    ("label", "house"): ("home", "cottage", "bungalow", "villa", "dwelling"),
    ("label", "bird"): ("fowl", "sparrow", "pigeon", "seagull", "songbird"),
    ("style", "photo"): ("shot", "photographic image", "picture taken by a camera"),
    ("style", "painting"): ("artwork", "watercolour", "fresco"),
    ("style", "sketch"): ("sketch", "line drawing", "scribble"),
    ("size", "small"): ("miniature", "petite", "compact"),
    ("size", "large"): ("enormous", "giant", "massive"),
    ("colour", "red"): ("ruby", "vermilion", "cherry-red"),
    ("colour", "orange"): ("amber", "apricot"),
    ("colour", "yellow"): ("mustard", "canary-yellow"),
    ("colour", "green"): ("jade", "lime"),
    ("colour", "blue"): ("cobalt", "sapphire", "indigo"),
    ("colour", "purple"): ("lavender", "plum", "magenta"),
    ("colour", "white"): ("pearly", "chalky"),
    ("colour", "black"): ("ebony", "inky"),
    ("pattern", "plain"): ("uniform", "solid"),
    ("pattern", "striped"): ("pinstriped", "with stripes"),
    ("pattern", "dotted"): ("polka-dotted", "dappled", "with dots"),
    ("background", "beach"): ("beach", "seashore", "seaside", "on the shore", "at the seaside", "on the coast"),
    ("background", "meadow"): ("meadow", "pasture", "green pasture", "grassy field", "grassland", "on the grass"),
    ("background", "city"): ("city", "town", "urban", "in a town", "among skyscrapers"),
    ("background", "forest"): ("forest", "woods", "woodland", "jungle", "in a grove"),
    ("background", "desert"): ("desert", "wasteland", "dry wasteland", "dunes", "sand dunes", "in a dry land"),
    ("background", "mountains"): ("mountains", "highlands", "high peaks", "alps", "among summits"),
    ("weather", "clear"): ("sunny", "clear sky", "clear weather", "cloud-free", "in fine weather"),
    ("weather", "rain"): ("rain", "shower", "downpour", "drizzle", "pouring", "in a drizzle"),
    ("weather", "snow"): ("snow", "falling snow", "snowstorm", "snowfall", "blizzard", "icy"),
    ("weather", "fog"): ("fog", "mist", "thick mist", "haze", "murky", "in a mist"),
    ("time", "day"): ("midday", "daylight", "by day"),
    ("time", "sunset"): ("evening", "sundown", "in the evening"),
    ("time", "night"): ("dark", "nocturnal", "by night", "in the dark"),
    ("companion", "person"): ("human", "walker", "somebody"),
    ("companion", "dog"): ("mutt", "terrier", "canine"),
    ("companion", "bicycle"): ("push-bike", "pedal cycle"),
    ("companion", "sign"): ("signboard", "billboard", "road sign"),
}

# Kinds, their phrases, and the classes that are of the kind: less alike than synonyms, more than strangers.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vehicle": (("vehicle", "motor vehicle", "means of transport"), ("car", "bus", "truck", "boat", "plane")),
    "aircraft": (("aircraft", "flying machine"), ("plane", "balloon")),
    "animal": (("animal", "creature", "beast"), ("bird",)),
}

# Things that a caption may name and that are none of the above; the second half is shown to no model in training.
THINGS = (
    "bench", "tree", "cat", "horse", "cow", "tent", "lamp", "fence", "flower", "umbrella", "bridge", "river", "chair",
    "table", "rock", "statue", "cloud", "rainbow", "ladder", "barrel", "basket", "kite", "mirror", "wheel", "guitar",
    "bottle", "clock", "carpet", "fountain", "mailbox", "pumpkin", "snowman", "scarecrow", "windmill", "suitcase",
    "shovel", "lantern", "parasol", "haystack", "trumpet",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meaning:
    """A concept: a scene field and value, or a kind, or ("thing", its name); and the phrases that mean it."""

    field: str
    value: str
    phrases: tuple[str, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that a class belongs to."""
        return tuple(kind for kind, (_, classes) in KINDS.items() if self.field == "label" and self.value in classes)


def meanings() -> list[Meaning]:
    """All concepts with all of their phrases, the grammar's first."""
    phrases_of: dict[tuple[str, str], dict[str, None]] = {}
    for slot in SLOTS.values():
        field = "colour" if slot.field == "companion_colour" else slot.field
        if field in EDIT_FACTOR or field == "label":
            for value, wording in slot.wordings.items():
                phrases_of.setdefault((field, value), {}).update(dict.fromkeys(wording.all))
    for key, phrases in SYNONYMS.items():
        phrases_of[key].update(dict.fromkeys(phrases))
    for kind, (phrases, _) in KINDS.items():
        phrases_of["kind", kind] = dict.fromkeys(phrases)
    for thing in THINGS:
        phrases_of["thing", thing] = {thing: None}
    return [Meaning(field, value, tuple(phrases)) for (field, value), phrases in phrases_of.items()]


@cache
def withheld_phrases() -> frozenset[str]:
    """Phrases that no training shows: those of several words that the grammar withholds, and half of the things."""
    spoken = (phrase for slot in SLOTS.values() for wording in slot.wordings.values() for phrase in wording.withheld)
    return frozenset((*(phrase for phrase in spoken if " " in phrase), *THINGS[len(THINGS) // 2 :]))


@cache
def withheld_pair(first: str, second: str) -> bool:
    """Whether training never compares these two phrases: three pairs in ten, by a hash, and all of withheld phrases."""
    if {first, second} & withheld_phrases():
        return True
    return hashlib.sha256("/".join(sorted((first, second))).encode()).digest()[0] < 77

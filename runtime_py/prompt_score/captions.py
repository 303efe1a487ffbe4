"""Scenes in words, and the words held back for the test.

A caption names colour and shape always and everything else by lot: what it leaves out the model
must make up, which is what makes two seeds give two pictures. A fixed fifth of the ways to
combine an opening, a place phrase and a background phrase never occurs in training either.
"""

from __future__ import annotations

import random

from runtime_py.prompt_score.scenes import Scene, Thing

OPENINGS = ("", "a ", "one ", "a picture of a ", "a drawing of a ", "there is a ")
#: Phrases for a place: for the plain sides, for the corners and for the centre.
SIDE_PHRASES = ("on the {}", "at the {}", "on the {} side")
CORNER_PHRASES = ("in the {} corner", "in the {}", "at the {}")
CENTRE_PHRASES = ("in the centre", "in the center", "in the middle")
BACKGROUND_PHRASES = (" on a {} background", ", {} background", " against a {} background")
RELATION_WORDS = {
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
#: Chance that a caption mentions a detail.
SAY_SIZE, SAY_PLACE, SAY_BACKGROUND, SAY_RELATION = 0.6, 0.6, 0.6, 0.75


def phrasing_held_out(opening: int, place: int, background: int) -> bool:
    """Whether this opening, place and background phrasing must not be used together."""
    return (opening + 2 * place + background) % 5 == 0


def place_words(place: str, variant: int) -> str:
    if place == "centre":
        return CENTRE_PHRASES[variant]
    phrases = CORNER_PHRASES if " " in place else SIDE_PHRASES
    return phrases[variant].format(place)


def thing_words(thing: Thing, say_size: bool) -> str:
    """For instance "small red circle" - without article."""
    words = [thing.size] if say_size and thing.size != "medium" else []
    words += ["striped"] if thing.striped else []
    return " ".join([*words, thing.colour, thing.shape])


def _article(opening: str, words: str) -> str:
    if opening.endswith("a ") and words[0] in "aeiou":
        opening = opening[:-1] + "n "
    return opening + words


def caption_single(
    scene: Scene,
    rng: random.Random,
    *,
    say_size: bool,
    say_place: bool,
    say_background: bool,
    held_out_phrasing: bool = False,
) -> str:
    """A caption of a one-thing scene that mentions exactly the details asked for.

    With `held_out_phrasing` (and both place and background mentioned) the phrasing is one that
    training never uses; otherwise it is one that training may use.
    """
    while True:
        opening, place, ground = rng.randrange(6), rng.randrange(3), rng.randrange(3)
        if not (say_place and say_background):
            break
        if phrasing_held_out(opening, place, ground) == held_out_phrasing:
            break
    words = _article(OPENINGS[opening], thing_words(scene.things[0], say_size))
    if say_place:
        assert scene.place is not None
        words += " " + place_words(scene.place, place)
    if say_background:
        words += BACKGROUND_PHRASES[ground].format(scene.background)
    return words


def caption_pair(
    scene: Scene, rng: random.Random, *, say_relation: bool, say_background: bool
) -> str:
    first, second = (_article("a ", thing_words(t, False)) for t in scene.things)
    if say_relation:
        assert scene.relation is not None
        link = rng.choice(RELATION_WORDS[scene.relation])
    else:
        link = "and"
        # "and" promises no order, so neither do we.
        if rng.random() < 0.5:
            first, second = second, first
    words = f"{first} {link} {second}"
    if say_background:
        words += rng.choice(BACKGROUND_PHRASES).format(scene.background)
    return words


def caption(scene: Scene, rng: random.Random) -> str:
    """A training caption: the details it mentions are drawn by lot."""
    if len(scene.things) == 2:
        return caption_pair(
            scene,
            rng,
            say_relation=rng.random() < SAY_RELATION,
            say_background=rng.random() < SAY_BACKGROUND,
        )
    return caption_single(
        scene,
        rng,
        say_size=rng.random() < SAY_SIZE,
        say_place=rng.random() < SAY_PLACE,
        say_background=rng.random() < SAY_BACKGROUND,
    )

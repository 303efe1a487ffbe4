"""A component made of several files, run one after the other; tensors pass by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from runtime_py.errors import PocketSDError
from runtime_py.package import Component


@dataclass(frozen=True)
class Link:
    """One file and the names of what goes in and comes out."""

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def chain_of(component: Component) -> tuple[Link, ...]:
    """The links that a component's config describes, checked to fit together."""
    try:
        links = msgspec.convert(component.config.get("chain"), tuple[Link, ...])
    except msgspec.ValidationError as error:
        raise PocketSDError(f"{component.name} describes no chain of files, {error}") from None
    known = {spec.name for spec in component.inputs}
    for link in links:
        if link.file not in component.files:
            raise PocketSDError(f"{component.name} chains {link.file}, which is none of its files")
        if missing := set(link.inputs) - known:
            raise PocketSDError(f"{link.file} wants {sorted(missing)}, which nothing before makes")
        known |= set(link.outputs)
    if missing := {spec.name for spec in component.outputs} - known:
        raise PocketSDError(f"no file of {component.name} makes {sorted(missing)}")
    return links


def last_uses(links: tuple[Link, ...], results: Mapping[str, object]) -> list[set[str]]:
    """For each link, the tensors that can be freed once it has run."""
    keep = set(results)
    freed: list[set[str]] = []
    for index, link in enumerate(links):
        later = {name for other in links[index + 1 :] for name in other.inputs} | keep
        freed.append((set(link.inputs) | set(link.outputs)) - later)
    return freed

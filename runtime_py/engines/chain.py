"""A component made of several files, run one after the other; tensors pass by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from runtime_py.engines import Array
from runtime_py.errors import PocketSDError
from runtime_py.package import Component


@dataclass(frozen=True)
class Link:
    """One file, or folder of files, and the names of what goes in and comes out."""

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
        if not any(_covers(link.file, name) for name in component.files):
            raise PocketSDError(f"{component.name} chains {link.file}, which is none of its files")
        if missing := set(link.inputs) - known:
            raise PocketSDError(f"{link.file} wants {sorted(missing)}, which nothing before makes")
        known |= set(link.outputs)
    if missing := {spec.name for spec in component.outputs} - known:
        raise PocketSDError(f"no file of {component.name} makes {sorted(missing)}")
    return links


def _covers(file: str, name: str) -> bool:
    """Whether a listed file is what a link names, or lies in the folder that it names."""
    return name == file or name.startswith(f"{file}/")


def run_chain(
    links: tuple[Link, ...],
    inputs: Mapping[str, Array],
    outputs: Iterable[str],
    run: Callable[[Link, Mapping[str, Array]], Mapping[str, Array]],
) -> dict[str, Array]:
    """Run one link after the other, keeping a tensor only as long as somebody wants it."""
    known, results = dict(inputs), dict.fromkeys(outputs)
    for link, done in zip(links, last_uses(links, results), strict=True):
        known |= run(link, {name: known[name] for name in link.inputs})
        for name in done:
            known.pop(name, None)
    return {name: known[name] for name in results}


def last_uses(links: tuple[Link, ...], results: Mapping[str, object]) -> list[set[str]]:
    """For each link, the tensors that can be freed once it has run."""
    keep = set(results)
    freed: list[set[str]] = []
    for index, link in enumerate(links):
        later = {name for other in links[index + 1 :] for name in other.inputs} | keep
        freed.append((set(link.inputs) | set(link.outputs)) - later)
    return freed

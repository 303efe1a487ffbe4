"""The emulated phone's shell: enough of sh to be injected into, and what a harness asks for.

Quotes, `;`, `&&`, `||`, pipes, redirection, globs and command substitution are really interpreted,
so that a name which is not quoted does on this phone what it would do on a real one.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

OPERATORS = ("&&", "||", ";", "|", ">>", ">", "&", "\n")
GLOB_CHARACTERS = "*?["


@dataclass
class Result:
    out: bytes = b""
    err: bytes = b""
    code: int = 0


@dataclass
class Phone:
    """What the commands see and change: files below `root`, properties, settings, a diary."""

    root: Path
    properties: dict[str, str]
    dumps: dict[str, str]  # of dumpsys, by its arguments
    packages: tuple[str, ...]
    capacity: int  # bytes of /data
    settings: dict[str, str] = field(default_factory=dict)
    diary: list[str] = field(default_factory=list)  # every command that was run

    def path(self, name: str) -> Path:
        """Where the phone's `name` is on this host: always below `root`, whatever `name` is."""
        parts: list[str] = []
        for part in name.split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in ("", "."):
                parts.append(part)
        path = self.root.joinpath(*parts)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise PermissionError(13, "Permission denied")  # a link that leads out
        return path

    def used(self) -> int:
        return sum(p.stat().st_size for p in (self.root / "data").rglob("*") if p.is_file())

    def run(self, script: str, stdin: bytes = b"") -> Result:
        try:
            return _Runner(self, stdin).run(list(_tokens(self, script)))
        except ValueError as error:
            return Result(err=f"sh: {error}\n".encode(), code=2)


@dataclass(frozen=True)
class Word:
    text: str
    quoted: bool


def _tokens(phone: Phone, script: str) -> Iterator[Word | str]:
    """Words, and operators as plain strings."""
    position, text, started, quoted = 0, "", False, False
    while position < len(script):
        rest = script[position:]
        operator = next((o for o in OPERATORS if rest.startswith(o)), None)
        if operator or rest[0] in " \t":
            if started:
                yield Word(text, quoted)
            text, started, quoted = "", False, False
            position += len(operator or " ")
            if operator:
                yield operator
            continue
        started = True
        if rest[0] in "'\"":
            quoted = True
            piece, length = _quoted(phone, rest)
        else:
            piece, length = _unquoted(phone, rest)
        text += piece
        position += length
    if started:
        yield Word(text, quoted)


def _quoted(phone: Phone, rest: str) -> tuple[str, int]:
    """The text of a quoted piece, and how long it was with its quotes."""
    text, position = "", 1
    while position < len(rest):
        if rest[position] == rest[0]:
            return text, position + 1
        if rest[0] == "'":
            piece, length = rest[position], 1
        elif rest[position] == "\\" and rest[position + 1 : position + 2] not in tuple('$`"\\'):
            piece, length = "\\", 1
        else:
            piece, length = _unquoted(phone, rest[position:])
        text += piece
        position += length
    raise ValueError("unterminated quoted string")


def _unquoted(phone: Phone, rest: str) -> tuple[str, int]:
    if rest[0] == "\\":
        return rest[1:2], 2
    if rest.startswith("$(") or rest[0] == "`":
        opening, closing = ("$(", ")") if rest[0] == "$" else ("`", "`")
        end = rest.find(closing, len(opening))
        if end < 0:
            raise ValueError("unterminated command substitution")
        result = phone.run(rest[len(opening) : end])
        return result.out.decode().rstrip("\n"), end + 1
    if name := re.match(r"\$\{?(\w+)\}?", rest):
        return "", len(name[0])  # no variable is set
    return rest[0], 1


class _Runner:
    def __init__(self, phone: Phone, stdin: bytes) -> None:
        self.phone, self.stdin, self.here = phone, stdin, "/"

    def run(self, tokens: list[Word | str]) -> Result:
        """Pipelines one after another; `&&` and `||` look at the code of the one before."""
        done, joint = Result(), ";"
        for pipeline, after in _split(tokens, (";", "\n", "&&", "||", "&")):
            skip = (joint == "&&" and done.code) or (joint == "||" and not done.code)
            if pipeline and not skip:
                result = self._pipeline(pipeline)
                done = Result(done.out + result.out, done.err + result.err, result.code)
            joint = after
        return done

    def _pipeline(self, tokens: list[Word | str]) -> Result:
        result, errors = Result(out=self.stdin), b""
        for command, _ in _split(tokens, ("|",)):
            result = self._command(command, result.out)
            errors += result.err
        return Result(result.out, errors, result.code)

    def _command(self, tokens: list[Word | str], stdin: bytes) -> Result:
        words: list[str] = []
        sinks: list[tuple[str, str, str]] = []  # stream, operator, file
        position = 0
        while position < len(tokens):
            token = tokens[position]
            if isinstance(token, str):
                target = tokens[position + 1] if position + 1 < len(tokens) else ""
                if not isinstance(target, Word):
                    raise ValueError(f"syntax error: unexpected {token!r}")
                stream = words.pop() if words and words[-1] in ("1", "2") else "1"
                sinks.append((stream, token, target.text))
                position += 1
            else:
                words += self._expand(token)
            position += 1
        if not words:
            raise ValueError("syntax error: a command is missing")
        result = self._call(words, stdin)
        for stream, operator, name in sinks:
            content = result.err if stream == "2" else result.out
            if name != "/dev/null":
                with self._at(name).open("ab" if operator == ">>" else "wb") as file:
                    file.write(content)
            if stream == "2":
                result.err = b""
            else:
                result.out = b""
        return result

    def _call(self, words: list[str], stdin: bytes) -> Result:
        name, *arguments = words
        self.phone.diary.append(" ".join(words))
        command = COMMANDS.get(name)
        if command is None:
            return Result(err=f"sh: {name}: inaccessible or not found\n".encode(), code=127)
        try:
            return command(self, [a for a in arguments if a != "--"], stdin)
        except OSError as error:
            named = arguments[-1] if arguments else ""
            return Result(err=f"{name}: {named}: {error.strerror}\n".encode(), code=1)

    def _expand(self, word: Word) -> list[str]:
        if word.quoted or not any(c in word.text for c in GLOB_CHARACTERS):
            return [word.text]
        top = str(self.phone.root)
        found = sorted(glob.glob(glob.escape(top) + self._absolute(word.text)))  # noqa: PTH207
        cut = top if word.text.startswith("/") else f"{top}{self.here.rstrip('/')}/"
        return [path.removeprefix(cut) for path in found] or [word.text]

    def _absolute(self, name: str) -> str:
        return name if name.startswith("/") else f"{self.here}/{name}"

    def _at(self, name: str) -> Path:
        return self.phone.path(self._absolute(name))

    # Commands that other phones have as programs.

    def cat(self, names: list[str], stdin: bytes) -> Result:
        return self._each(names, lambda path, name: path.read_bytes()) if names else Result(stdin)

    def sha256sum(self, names: list[str], stdin: bytes) -> Result:
        def line(path: Path, name: str) -> bytes:
            return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode()

        return self._each(names, line)

    def stat(self, words: list[str], stdin: bytes) -> Result:
        form, names = (words[1], words[2:]) if words[:1] == ["-c"] else ("%n %s", words)

        def line(path: Path, name: str) -> bytes:
            filled = form.replace("%s", str(path.stat().st_size)).replace("%n", name)
            return f"{filled}\n".encode()

        return self._each(names, line)

    def ls(self, words: list[str], stdin: bytes) -> Result:
        names = [w for w in words if not w.startswith("-")] or [self.here]

        def lines(path: Path, name: str) -> bytes:
            entries = sorted(p.name for p in path.iterdir()) if path.is_dir() else [name]
            return "".join(f"{e}\n" for e in entries).encode()

        return self._each(names, lines)

    def _each(self, names: list[str], act: Callable[[Path, str], bytes]) -> Result:
        result = Result()
        for name in names:
            try:
                result.out += act(self._at(name), name)
            except OSError as error:
                result.err += f"{name}: {error.strerror}\n".encode()
                result.code = 1
        return result

    def cd(self, words: list[str], stdin: bytes) -> Result:
        if not self._at(words[0]).is_dir():
            return Result(err=f"sh: cd: {words[0]}: No such file or directory\n".encode(), code=2)
        self.here = self._absolute(words[0])
        return Result()

    def mkdir(self, words: list[str], stdin: bytes) -> Result:
        for name in (w for w in words if w != "-p"):
            self._at(name).mkdir(parents="-p" in words, exist_ok="-p" in words)
        return Result()

    def rm(self, words: list[str], stdin: bytes) -> Result:
        options = "".join(w for w in words if w.startswith("-"))
        for name in (w for w in words if not w.startswith("-")):
            path = self._at(name)
            if path.is_dir() and "r" in options:
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok="f" in options)
        return Result()

    def mv(self, words: list[str], stdin: bytes) -> Result:
        source, target = (self._at(w) for w in words if not w.startswith("-"))
        source.rename(target / source.name if target.is_dir() else target)
        return Result()

    def touch(self, names: list[str], stdin: bytes) -> Result:
        return self._each(names, lambda path, name: path.touch() or b"")  # type: ignore[func-returns-value]

    def echo(self, words: list[str], stdin: bytes) -> Result:
        return Result((" ".join(words) + "\n").encode())

    def grep(self, words: list[str], stdin: bytes) -> Result:
        pattern = next(w for w in words if not w.startswith("-"))
        found = [line for line in stdin.decode().splitlines() if re.search(pattern, line)]
        kept = found[:1] if "-m1" in words else found
        return Result("".join(f"{line}\n" for line in kept).encode(), code=0 if kept else 1)

    def df(self, words: list[str], stdin: bytes) -> Result:
        total, used = self.phone.capacity // 1024, self.phone.used() // 1024
        free = max(0, total - used)
        head = "Filesystem     1K-blocks     Used Available Use% Mounted on"
        row = f"/dev/block/dm-55 {total} {used} {free} {100 * used // total}% /data"
        return Result(f"{head}\n{row}\n".encode())

    def getprop(self, words: list[str], stdin: bytes) -> Result:
        properties = self.phone.properties
        if words:
            return Result(f"{properties.get(words[0], '')}\n".encode())
        return Result("".join(f"[{k}]: [{v}]\n" for k, v in properties.items()).encode())

    def dumpsys(self, words: list[str], stdin: bytes) -> Result:
        text = self.phone.dumps.get(" ".join(words))
        if text is None:
            return Result(err=f"Can't find service: {words[0]}\n".encode())
        return Result(text.encode())

    def settings(self, words: list[str], stdin: bytes) -> Result:
        verb, space, key, *value = words
        if verb == "put":
            self.phone.settings[f"{space} {key}"] = value[0]
            return Result()
        return Result(f"{self.phone.settings.get(f'{space} {key}', 'null')}\n".encode())

    def svc(self, words: list[str], stdin: bytes) -> Result:
        plugs = {"true": "7", "ac": "1", "usb": "2", "wireless": "4", "false": "0"}
        if words[:2] != ["power", "stayon"] or words[2] not in plugs:
            return Result(err=b"Available commands: power stayon\n", code=1)
        self.phone.settings["global stay_on_while_plugged_in"] = plugs[words[2]]
        return Result()

    def pm(self, words: list[str], stdin: bytes) -> Result:
        wanted = words[2] if len(words) > 2 else ""
        names = fnmatch.filter(self.phone.packages, f"*{wanted}*")
        return Result("".join(f"package:{name}\n" for name in names).encode())

    def am(self, words: list[str], stdin: bytes) -> Result:
        return Result(f"Starting: Intent {{ {' '.join(words[1:])} }}\n".encode())

    def sh(self, words: list[str], stdin: bytes) -> Result:
        return self.phone.run(words[1], stdin)

    def true(self, words: list[str], stdin: bytes) -> Result:
        return Result()

    def false(self, words: list[str], stdin: bytes) -> Result:
        return Result(code=1)


def _split(tokens: list[Word | str], at: tuple[str, ...]) -> Iterator[tuple[list[Word | str], str]]:
    part: list[Word | str] = []
    for token in tokens:
        if isinstance(token, str) and token in at:
            yield part, token
            part = []
        else:
            part.append(token)
    yield part, ""


COMMANDS: dict[str, Callable[[_Runner, list[str], bytes], Result]] = {
    name: function
    for name, function in vars(_Runner).items()
    if not name.startswith("_") and name != "run"
}

"""`ewc completion SHELL`: a script that completes commands, options and their values.

It is made from the parser, and so from the dataclasses of options. It holds all words, since a
shell cannot wait for Python to import torch at each press of the key; write it again after an
update.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from shlex import quote

from ewc_paper.experiments import SUMMARIES

SHELLS = ("bash", "zsh", "fish")
WHERE = {
    "bash": "~/.local/share/bash-completion/completions/ewc",
    "zsh": "a file _ewc in a directory of $fpath",
    "fish": "~/.config/fish/completions/ewc.fish",
}


@dataclass
class Place:
    """What may follow some words of a command.

    Args:
        words: such as `run many-tasks`; empty for `ewc` itself.
        names: commands or experiments that may come next, with what they are.
        options: with what they are.
        values: by option, the values to choose from; an option that takes none of a list is absent.
        paths: whether files and directories may come next.
    """

    words: str
    names: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[str]] = field(default_factory=dict)
    paths: bool = False


def places(parser: argparse.ArgumentParser, words: Sequence[str] = ()) -> Iterator[Place]:
    """Yield what may follow the words of each command and experiment that a parser has."""
    here = Place(" ".join(words))
    inner: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            inner = dict(action.choices)
            said = {each.dest: each.help or "" for each in action._choices_actions}
            here.names = {name: said.get(name, "") for name in inner}
        elif not action.option_strings:
            here.paths = here.paths or action.choices is None
            here.names |= {str(choice): "" for choice in action.choices or ()}
        for name in action.option_strings:
            if not name.startswith("--"):
                continue
            text = (action.help or "").replace("%%", "%").replace("%(default)s", "")
            here.options[name] = "" if text == argparse.SUPPRESS else text.partition(" (")[0]
            if action.choices:
                here.values[name] = [str(choice) for choice in action.choices]
    yield here
    for name, each in inner.items():
        yield from places(each, (*words, name))


def script(shell: str, commands: Sequence[Place]) -> str:
    """Return the script for a shell."""
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)
    return "\n".join([f"# Completion of ewc, for {shell}; as a file: {WHERE[shell]}", *lines, ""])


def _bash(commands: Sequence[Place]) -> Iterator[str]:
    yield "_ewc() {"
    yield "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} place= each"
    yield "  local depth=0 words= files="
    yield '  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield "    [[ $each == -* || $depth -eq 2 ]] && break"
    yield "    place+=${place:+ }$each; depth=$((depth + 1))"
    yield "  done"
    yield "  case $place in run*|sweep*) ;; *) place=${place%% *} ;; esac"
    yield from _bash_cases(commands)
    yield "  if [[ $before == --out || $before == --data || $before == --agents ]]; then"
    yield "    words= files=yes"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "  if [[ -n $files && $word != -* ]]; then"
    yield '    COMPREPLY+=($(compgen -f -- "$word")); compopt -o filenames 2>/dev/null'
    yield "  fi"
    yield "}"
    yield "complete -F _ewc ewc"


def _bash_cases(commands: Sequence[Place]) -> Iterator[str]:
    yield "  case $place in"
    for place in commands:
        words = " ".join([*place.names, *place.options])
        files = "yes" if place.paths else ""
        yield f"  {quote(place.words)})"
        yield f"    words={quote(words)} files={files}"
        if place.values:
            yield "    case $before in"
            for option, values in place.values.items():
                yield f"    {option}) words={quote(' '.join(values))} files= ;;"
            yield "    esac"
        yield "    ;;"
    yield "  esac"


def _zsh(commands: Sequence[Place]) -> Iterator[str]:
    yield "#compdef ewc"
    yield "_ewc() {"
    yield "  local place= each before=${words[CURRENT-1]} depth=0 files="
    yield "  local -a known"
    yield "  for each in ${words[2,CURRENT-1]}; do"
    yield "    [[ $each == -* || $depth -eq 2 ]] && break"
    yield "    place+=${place:+ }$each; depth=$((depth + 1))"
    yield "  done"
    yield "  case $place in run*|sweep*) ;; *) place=${place%% *} ;; esac"
    yield "  case $place in"
    for place in commands:
        described = {**place.names, **place.options}
        entries = " ".join(
            quote(f"{name}:{text}" if text else name) for name, text in described.items()
        )
        yield f"  {quote(place.words)})"
        yield f"    known=({entries}) files={'yes' if place.paths else ''}"
        if place.values:
            yield "    case $before in"
            for option, values in place.values.items():
                yield f"    {option}) known=({' '.join(map(quote, values))}) files= ;;"
            yield "    esac"
        yield "    ;;"
    yield "  esac"
    yield "  [[ $before == (--out|--data|--agents) ]] && { _files; return }"
    yield "  [[ -n $files ]] && _files"
    yield "  _describe ewc known"
    yield "}"
    yield "(( $+functions[compdef] )) && compdef _ewc ewc"


def _fish(commands: Sequence[Place]) -> Iterator[str]:
    yield "function __ewc_place"
    yield "    set -l words (commandline -opc)[2..]"
    yield "    set -l place"
    yield "    for word in $words"
    yield "        string match -q -- '-*' $word; and break"
    yield "        test (count $place) -eq 2; and break"
    yield "        set -a place $word"
    yield "        contains -- $place[1] run sweep; or break"
    yield "    end"
    yield "    test (string join ' ' -- $place) = \"$argv[1]\""
    yield "end"
    yield "complete -c ewc -f"
    for place in commands:
        here = quote(f"__ewc_place {quote(place.words)}")
        for name, text in place.names.items():
            yield f"complete -c ewc -n {here} -a {quote(name)} -d {quote(text)}"
        for option, text in place.options.items():
            values = place.values.get(option)
            taken = f" -xa {quote(' '.join(values))}" if values else ""
            name = option.removeprefix("--")
            yield f"complete -c ewc -n {here} -l {name}{taken} -d {quote(text)}"
        if place.paths:
            yield f"complete -c ewc -n {here} -F"


def named_experiments() -> list[str]:
    """Return words that make the parser build the options of every experiment."""
    return [*SUMMARIES, "--help-all"]

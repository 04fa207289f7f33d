"""Split shell text into tokens, and keep what a shell would drop.

`shlex` loses comments, operators and line numbers, and takes a `#` inside a word for a comment; a pasted command needs
all of them. Quotes, escapes and line continuations follow POSIX. Placeholders such as `<MODEL_DIR>` are one word,
since documentation is full of them; a redirection is written with a space or a file name without a closing `>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class CommandError(ValueError):
    """The command cannot be read; the message says where and why."""


@dataclass(frozen=True)
class Token:
    """A token: kind is word, operator (; && || & |), redirect, newline or comment. `line` counts from 1."""

    kind: str
    text: str
    line: int


PLACEHOLDER = re.compile(r"<[A-Za-z][\w .:/|-]*>")
REDIRECT = re.compile(r"(?:\d|&)?(?:>>|>\||>&|>|<<<|<<|<)(?:&?\d)?")
OPERATOR = re.compile(r"&&|\|\||;;|[;|&]")
CONTINUATION = re.compile(r"\\[ \t\r]*\n")


def lex(text: str) -> list[Token]:
    """Tokens of a shell text.

    Raises:
        CommandError: a quote that is never closed, with the line where it opens.
    """
    return _Lexer(text.replace("\r\n", "\n")).run()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.word: list[str] | None = None
        self.word_line = 1
        self.tokens: list[Token] = []

    def run(self) -> list[Token]:
        while self.at < len(self.text):
            self.step()
        self.end_word()
        return self.tokens

    def step(self) -> None:
        char = self.text[self.at]
        if continuation := CONTINUATION.match(self.text, self.at):
            # A backslash with blanks behind it continues nothing in a shell; in pasted text it was meant to.
            if continuation[0] != "\\\n":
                self.end_word()
            self.skip(len(continuation[0]))
        elif char == "\n":
            self.end_word()
            self.tokens.append(Token("newline", "", self.line))
            self.skip(1)
        elif char in " \t\r":
            self.end_word()
            self.skip(1)
        elif char == "#" and self.word is None:
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            self.tokens.append(Token("comment", self.text[self.at : end].rstrip(), self.line))
            self.skip(end - self.at)
        elif char == "\\":
            self.add(self.text[self.at + 1 : self.at + 2])
            self.skip(2)
        elif char == "'":
            self.quoted("'")
        elif char == '"':
            self.quoted('"')
        elif placeholder := PLACEHOLDER.match(self.text, self.at):
            self.add(placeholder[0])
            self.skip(len(placeholder[0]))
        elif char == "$" and self.text.startswith("${", self.at) and "}" in self.text[self.at :]:
            end = self.text.index("}", self.at) + 1
            self.add(self.text[self.at : end])
            self.skip(end - self.at)
        elif (redirect := REDIRECT.match(self.text, self.at)) and (self.word is None or char in "<>"):
            self.end_word()
            self.tokens.append(Token("redirect", redirect[0], self.line))
            self.skip(len(redirect[0]))
        elif operator := OPERATOR.match(self.text, self.at):
            self.end_word()
            self.tokens.append(Token("operator", operator[0], self.line))
            self.skip(len(operator[0]))
        else:
            self.add(char)
            self.skip(1)

    def quoted(self, quote: str) -> None:
        start = self.line
        self.add("")
        self.skip(1)
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == quote:
                self.skip(1)
                return
            if quote == '"' and char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                escaped = self.text[self.at + 1]
                self.add("" if escaped == "\n" else escaped)
                self.skip(2)
            else:
                self.add(char)
                self.skip(1)
        name = "double" if quote == '"' else "single"
        raise CommandError(f"unbalanced quote: the {name} quote opened in line {start} is never closed")

    def add(self, text: str) -> None:
        if self.word is None:
            self.word = []
            self.word_line = self.line
        self.word.append(text)

    def skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def end_word(self) -> None:
        if self.word is not None:
            self.tokens.append(Token("word", "".join(self.word), self.word_line))
            self.word = None

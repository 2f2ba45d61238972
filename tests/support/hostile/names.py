"""File names as a request sends them, byte for byte, and as the job shows them. None of them is ever opened."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Name:
    """A `filename` of a form, `raw`, and the name that the image of the job gets, `stored`."""

    name: str
    raw: bytes
    stored: str


def _same(name: str, text: str) -> Name:
    return Name(name, text.encode(), text)


STORED_NAMES = [
    _same("climbing", "../../../../etc/passwd.png"),
    _same("absolute", "/etc/cron.d/evil.png"),
    _same("only dots", ".."),
    _same("a device", "CON.png"),
    _same("empty", ""),
    _same("a page", "<script>alert(1)</script><img src=x onerror=alert(1)>.png"),
    _same("a template", "{{7*7}}${7*7}<%= 7*7 %>.png"),
    _same("a formula", "=HYPERLINK('http://evil','a').png"),
    _same("a command", "$(reboot);`id`|nc.png"),
    _same("percent signs", "%00%2e%2e%2f.png"),
    _same("a mark for right-to-left scripts", "\u200fصورة.png"),
    _same("joined emoji", "👩\u200d🚀.png"),
    _same("a tower of accents", "a" + "\u0301" * 500 + ".png"),
    _same("a thousand characters", "ä" * 1_000),
    Name("a drive", b"C:\\windows\\system32\\a.png", "a.png"),
    Name("a share", b"\\\\host\\share\\a.png", "\\host\\share\\a.png"),
    Name("NUL", b"a\0.png", f"a{SHOWN}.png"),
    Name("a bell and an escape", b"a\x07\x1b[31m.png", f"a{SHOWN}{SHOWN}[31m.png"),
    Name("turned around", "photo\u202egnp.exe".encode(), f"photo{SHOWN}gnp.exe"),
    Name("isolated", "a\u2067b\u2069.png".encode(), f"a{SHOWN}b{SHOWN}.png"),
    Name("a line separator", "a\u2028b.png".encode(), f"a{SHOWN}b.png"),
    Name("not UTF-8", b"\xff\xfe.png", "ÿþ.png"),
    Name("half a character", b"\xed\xa0\xbd.png", f"í\xa0{chr(0xBD)}.png"),
    Name("a second name", b"a.png\"; filename*=\"UTF-8''..%2Fevil.png", "a.png"),
]

REFUSED_NAMES = [
    ("1,001 characters", b"x" * 1_001, 422, "more than 1,000 characters"),
    ("10 kB", b"x" * 10_000, 400, "the form cannot be read"),
    ("a new line", b"a\r\nContent-Type: text/html\r\n\r\nb.png", 422, "none of the 1 files can be used"),
]


def form(*parts: tuple[bytes, bytes], boundary: bytes = b"x") -> bytes:
    """A multipart body of (Content-Disposition after `form-data; `, content)."""
    body = b"".join(
        b"--" + boundary + b"\r\nContent-Disposition: form-data; " + about + b"\r\n\r\n" + content + b"\r\n"
        for about, content in parts
    )
    return body + b"--" + boundary + b"--\r\n"

"""Our own documents, to be run word for word."""

from __future__ import annotations

import re

from servers import ROOT


def block(path: str, start: str) -> str:
    """The code block of a document that starts so."""
    found: list[str] = re.findall(r"```\w+\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)
    (text,) = [text for text in found if text.startswith(start)]
    return text

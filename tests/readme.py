"""Takes code out of a Markdown file, so that what README shows is what the tests run."""

import re
import sys
from pathlib import Path


def code_blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    print("\n".join(code_blocks(Path(sys.argv[1]).read_text(), "python")))

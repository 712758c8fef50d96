"""Students' names and ids, which may hold anything."""


def printable(text: str) -> str:
    """Replace what a terminal, a page or a database cannot show by �."""
    return "".join(char if char.isprintable() else "�" for char in text)


def whole_letters(text: str) -> str:
    """Replace what JSON can hold and no file can: halves of letters, such as half an emoji."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

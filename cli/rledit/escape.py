"""Text from files on its way to a terminal."""


def plain(text: str) -> str:
    """The text with every character that could steer a terminal written out: names in a checkpoint
    are anybody's."""
    return "".join(
        char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text
    )

"""Numbers of things in words, for people."""


def counted(n: int, noun: str, *, is_grouped: bool = False) -> str:
    """Return a number and its noun, to which an "s" makes the plural; the digits in groups of three if asked.

    >>> counted(1, "turn"), counted(0, "turn"), counted(1500, "character", is_grouped=True)
    ('1 turn', '0 turns', '1,500 characters')
    """
    digits = f"{n:,}" if is_grouped else str(n)
    return f"{digits} {noun}" if n == 1 else f"{digits} {noun}s"

"""Checks of constructor arguments: the value, or an error that names it and what is allowed."""


def positive_int(name: str, value: object) -> int:
    """The value, if it is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """The value, if it is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def in_range(name: str, value: float, low: float, high: float) -> float:
    """The value, if it lies between ``low`` and ``high``, both allowed."""
    if not low <= value <= high:
        raise ValueError(f"{name} must lie between {low} and {high}, got {value!r}")
    return value

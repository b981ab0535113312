"""Bad input, told in one line: what is wrong, the value given, what is allowed, and the fix."""


class InputError(ValueError):
    """Raised before any work is done. The command line prints it as one line and exits with 2."""

    def __init__(self, what: str, value: object, allowed: str, fix: str) -> None:
        super().__init__(f"{what}, got {value!r}, allowed: {allowed}, {fix}")
        self.what = what
        self.value = value
        self.allowed = allowed
        self.fix = fix


class DataError(ValueError):
    """Stored data is not what it should be. The command line prints it as one line and exits with 1."""

    def __init__(self, what: str, value: object, allowed: str, fix: str) -> None:
        super().__init__(f"{what}, got {value!r}, allowed: {allowed}, {fix}")

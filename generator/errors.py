"""Bad input and bad data, told in one line: what is wrong, the value given, what is allowed, and the fix."""


class _ToldError(ValueError):
    def __init__(self, what: str, value: object, allowed: str, fix: str) -> None:
        super().__init__(f"{what}, got {value!r}, allowed: {allowed}, {fix}")
        self.what = what
        self.value = value
        self.allowed = allowed
        self.fix = fix

    def __reduce__(self) -> tuple[type, tuple[str, object, str, str]]:
        """Errors cross processes; by default they would be made again from the line alone."""
        return type(self), (self.what, self.value, self.allowed, self.fix)


class InputError(_ToldError):
    """Raised before any work is done. The command line prints it as one line and exits with 2."""


class DataError(_ToldError):
    """Stored data is not what it should be. The command line prints it as one line and exits with 1."""


class HubError(_ToldError):
    """The Hub refuses or cannot be reached. The command line prints it as one line and exits with 3."""

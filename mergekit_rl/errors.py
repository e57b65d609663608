"""The errors a user can fix."""


class EditError(Exception):
    """Something the user can fix: the message names the thing, what was found, what was expected
    and what to do. Everything else that is raised is a bug."""


class UnusableInput(EditError):
    """An input that will not do as it is, found while it was read: a run that resumed would find it
    again, so nothing of the run is kept."""

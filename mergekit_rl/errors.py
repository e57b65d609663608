"""The one error a user can fix."""


class EditError(Exception):
    """Something the user can fix: the message names the thing, what was found, what was expected
    and what to do. Everything else that is raised is a bug."""

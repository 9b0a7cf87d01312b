"""What each verb of the command line does: a front end without a screen on the console's core.

Each verb takes a target and options, prints for people or as JSON, and returns the exit status.
Mistakes are raised as :class:`console.verbs.common.VerbError`, ``ConfigError`` or ``LinkError``,
one line each.
"""

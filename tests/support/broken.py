"""A module that cannot be imported."""

raise SyntaxError("not Python")

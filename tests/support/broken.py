"""A module that fails to import."""

raise SyntaxError("not Python")

"""One round, whoever carries its messages: the server half that is driven, and the one loop."""

"""How well games are told apart by their frames."""

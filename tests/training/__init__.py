"""How the trained models of the zoo were made; in the repository only, not in the wheel."""

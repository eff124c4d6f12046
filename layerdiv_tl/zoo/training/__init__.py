"""How the trained models of the zoo were made; not part of the wheel."""

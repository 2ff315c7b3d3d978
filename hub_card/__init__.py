"""The place of model cards: their template and the code that fills it."""

"""How the families of models write answers: one file for each, found by the text of the model's chat template."""

"""The form in which a model writes answers, learned from what its chat template renders."""

"""From a name to a loaded model."""

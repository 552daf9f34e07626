"""The version: of the package, and so of every artifact it writes."""

VERSION = "0.1.0"
ARTIFACT_FORMAT = 12

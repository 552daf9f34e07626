"""The registry: models that a user gave names to, in one SQLite file in the user's data folder.

It says where a model's files are, and their sizes and hashes when it was added, so that a file that changed or went is
told. The files stay where they are: nothing here removes, moves or writes one. `Registry` (registry.py) is the only
module that speaks SQL; records.py has what it takes and returns.
"""

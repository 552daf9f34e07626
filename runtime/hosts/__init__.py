"""Hosts: the ways to run a plan. Each folder with a module `host` is one; see registry.py."""

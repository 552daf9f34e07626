"""Hosts: places where a plan runs."""

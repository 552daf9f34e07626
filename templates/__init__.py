"""Kernel templates and host preludes, as package data."""

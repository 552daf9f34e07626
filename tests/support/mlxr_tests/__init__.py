"""Helpers of several tests: small specs, random weights, the tolerance table, and harnesses around the hosts."""

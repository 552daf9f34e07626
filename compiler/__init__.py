"""Spec to artifact: parse, build, fuse, plan, render. Never imports mlx or the runtime."""

"""The parts of benchmarks/engine.py: workloads, one module for each kind of measurement, and the report."""

"""The studies behind the tables of the documentation: `python -m benchmarks.studies.NAME`."""

"""From a Relax module to a `Program`: fusion, library calls, extraction, splitting, merging."""

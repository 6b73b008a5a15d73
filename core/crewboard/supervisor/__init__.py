"""One small process per team: starts workers, records how they end, buries the dead."""

"""reconstructor."""
